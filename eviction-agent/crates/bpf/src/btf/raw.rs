//! The blob itself: its sections, where each type begins, and what follows a type's three words.
#![forbid(unsafe_code)]

use super::BtfError;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;

/// Types refer to others; no honest chain of names for the same thing is longer.
pub(super) const CHAIN: usize = 32;

/// Kinds of types (linux/btf.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

impl Kind {
    fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Int,
            2 => Self::Ptr,
            3 => Self::Array,
            4 => Self::Struct,
            5 => Self::Union,
            6 => Self::Enum,
            7 => Self::Fwd,
            8 => Self::Typedef,
            9 => Self::Volatile,
            10 => Self::Const,
            11 => Self::Restrict,
            12 => Self::Func,
            13 => Self::FuncProto,
            14 => Self::Var,
            15 => Self::Datasec,
            16 => Self::Float,
            17 => Self::DeclTag,
            18 => Self::TypeTag,
            19 => Self::Enum64,
            _ => return None,
        })
    }

    /// Bytes that follow the type's three words.
    fn tail(self, entries: usize) -> usize {
        match self {
            Self::Int | Self::Var | Self::DeclTag => 4,
            Self::Array => 12,
            Self::Struct | Self::Union | Self::Datasec | Self::Enum64 => 12 * entries,
            Self::Enum | Self::FuncProto => 8 * entries,
            Self::Ptr
            | Self::Fwd
            | Self::Typedef
            | Self::Volatile
            | Self::Const
            | Self::Restrict
            | Self::Func
            | Self::Float
            | Self::TypeTag => 0,
        }
    }
}

/// One type: its three words and what follows.
#[derive(Clone, Copy)]
pub(super) struct Type<'a> {
    pub(super) kind: Kind,
    /// Where its name is among the strings.
    pub(super) name: u32,
    pub(super) kind_flag: bool,
    /// Its size, or the type that it refers to.
    pub(super) word: u32,
    pub(super) tail: &'a [u8],
}

impl Type<'_> {
    /// An array's element type and length.
    pub(super) fn array(&self) -> Option<(u32, u32)> {
        if self.kind != Kind::Array {
            return None;
        }
        u32_at(self.tail, 0).zip(u32_at(self.tail, 8))
    }
}

/// The types of a blob: the kernel's, or a module's, which go on where the kernel's end.
pub(super) struct Types<'a> {
    kernel: Option<&'a Types<'a>>,
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins; the kernel's first is type 1.
    begins: Vec<u32>,
}

impl<'a> Types<'a> {
    /// Walks the blob, showing each type with its number.
    pub(super) fn walk(
        kernel: Option<&'a Types<'a>>,
        blob: &'a [u8],
        mut each: impl FnMut(&Self, u32, &Type<'a>),
    ) -> Result<Self, BtfError> {
        let have = blob.len();
        let cut = |what, end: u64| BtfError::Cut { what, end, have };
        let head = blob.get(..HEADER_BYTES).ok_or(cut("its header", HEADER_BYTES as u64))?;
        let magic = u16::from_ne_bytes([head[0], head[1]]);
        if magic != MAGIC {
            return Err(BtfError::Magic(magic));
        }
        let word = |place| u64::from(u32_at(head, place).unwrap_or(0));
        let section = |what, offset: u64, len: u64| {
            let start = word(4) + offset;
            let end = start + len;
            let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            range.and_then(|(start, end)| blob.get(start..end)).ok_or(cut(what, end))
        };
        let mut found = Self {
            kernel,
            types: section("the types", word(8), word(12))?,
            strings: section("the strings", word(16), word(20))?,
            begins: Vec::new(),
        };
        // Most types have a tail, so this is a little more than is needed.
        found.begins.reserve_exact(found.types.len() / (TYPE_BYTES + 8));
        let mut at = 0;
        while at < found.types.len() {
            let id = found.kernel_types() + found.begins.len() as u32 + 1;
            let (one, next) = found.read(at).map_err(|kind| match kind {
                Some(kind) => BtfError::Kind { id, kind },
                None => cut("a type", (at + TYPE_BYTES) as u64),
            })?;
            found.begins.push(at as u32);
            each(&found, id, &one);
            at = next;
        }
        found.begins.shrink_to_fit();
        Ok(found)
    }

    /// The type that begins at this byte, and where the next one does; else its unknown kind, or
    /// nothing if it is cut off.
    fn read(&self, at: usize) -> Result<(Type<'a>, usize), Option<u32>> {
        let head = self.types.get(at..at.saturating_add(TYPE_BYTES)).ok_or(None)?;
        let word = |place| u32_at(head, place).ok_or(None);
        let info = word(4)?;
        let raw = (info >> 24) & 0x1f;
        let kind = Kind::from_raw(raw).ok_or(Some(raw))?;
        let next = at + TYPE_BYTES + kind.tail((info & 0xffff) as usize);
        let tail = self.types.get(at + TYPE_BYTES..next).ok_or(None)?;
        let one = Type { kind, name: word(0)?, kind_flag: info >> 31 == 1, word: word(8)?, tail };
        Ok((one, next))
    }

    /// How many types come before the first of this blob.
    fn kernel_types(&self) -> u32 {
        self.kernel.map_or(0, |kernel| kernel.begins.len() as u32)
    }

    /// The name that begins at this place among the strings.
    pub(super) fn name(&self, place: u32) -> Option<&'a str> {
        let place = place as usize;
        let of_kernel = self.kernel.map_or(0, |kernel| kernel.strings.len());
        let Some(own) = place.checked_sub(of_kernel) else {
            return self.kernel?.name(place as u32);
        };
        let rest = self.strings.get(own..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }

    /// The type with this number.
    pub(super) fn by_id(&self, id: u32) -> Option<Type<'a>> {
        let Some(own) = id.checked_sub(self.kernel_types() + 1) else {
            return self.kernel?.by_id(id);
        };
        let begin = *self.begins.get(own as usize)?;
        Some(self.read(begin as usize).ok()?.0)
    }

    /// The type behind typedefs, qualifiers and tags.
    pub(super) fn bare(&self, mut id: u32) -> Option<Type<'a>> {
        for _ in 0..CHAIN {
            let found = self.by_id(id)?;
            match found.kind {
                Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => {
                    id = found.word;
                }
                _ => return Some(found),
            }
        }
        None
    }

    /// Size of a type, bytes.
    pub(super) fn size(&self, mut id: u32) -> Option<u64> {
        let mut times = 1_u64;
        for _ in 0..CHAIN {
            let found = self.bare(id)?;
            match found.kind {
                Kind::Array => {
                    let (element, len) = found.array()?;
                    times = times.checked_mul(u64::from(len))?;
                    id = element;
                }
                Kind::Ptr => return times.checked_mul(size_of::<usize>() as u64),
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => {
                    return times.checked_mul(u64::from(found.word));
                }
                _ => return None,
            }
        }
        None
    }
}

/// The word at this byte.
pub(super) fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    let bytes = bytes.get(place..place.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
