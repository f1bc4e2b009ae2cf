//! Enums whose variants have names.

/// Declares an enum whose variants have names for metrics, event lines and files: `Variant = "name"`. The
/// enum gets the constant `ALL` and the method `name`. Its `Display` writes the name.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$outer:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$inner:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$outer])*
        $vis enum $enum {
            $($(#[$inner])* $variant,)+
        }

        impl $enum {
            /// All of them, in the order of their discriminants.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in metrics, event lines and files.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
