//! Enums that the programs and user space exchange as numbers.

/// Defines an enum with its numbers, `ALL` and `from_raw`.
macro_rules! numbered_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $repr:ident {
            $($(#[$doc:meta])+ $variant:ident = $number:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$doc])+ $variant = $number,)+
        }

        impl $name {
            /// All values.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// Returns the value with this number.
            pub fn from_raw(raw: $repr) -> Option<Self> {
                Self::ALL.into_iter().find(|value| *value as $repr == raw)
            }
        }
    };
}
pub(crate) use numbered_enum;
