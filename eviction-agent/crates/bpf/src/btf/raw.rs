//! The parts of a BTF blob: its sections, where each type begins, and what follows a type's three words.
#![forbid(unsafe_code)]

use super::Btf;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;

/// The most references between types that are followed. Valid BTF has no longer chain of names for one type.
pub(super) const CHAIN: usize = 32;

/// The kinds of types (linux/btf.h) that the reader distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Enum64,
    Fwd,
    Float,
    Func,
    FuncProto,
    /// Another name for a type.
    Typedef,
    /// A qualifier or a tag of a type.
    Qualifier,
    /// Not a type: a variable, a section, or a tag of a declaration.
    Other,
}

impl Kind {
    /// Returns the kind of this number, and how many bytes follow the three words of a type with so many entries.
    fn from_raw(raw: u32, entries: usize) -> Option<(Self, usize)> {
        Some(match raw {
            1 => (Self::Int, 4),
            2 => (Self::Ptr, 0),
            3 => (Self::Array, 12),
            4 => (Self::Struct, 12 * entries),
            5 => (Self::Union, 12 * entries),
            6 => (Self::Enum, 8 * entries),
            7 => (Self::Fwd, 0),
            8 => (Self::Typedef, 0),
            // volatile, const, restrict, and a type tag.
            9..=11 | 18 => (Self::Qualifier, 0),
            12 => (Self::Func, 0),
            13 => (Self::FuncProto, 8 * entries),
            // A variable, and a tag of a declaration.
            14 | 17 => (Self::Other, 4),
            // A section.
            15 => (Self::Other, 12 * entries),
            16 => (Self::Float, 0),
            19 => (Self::Enum64, 12 * entries),
            _ => return None,
        })
    }
}

/// One type: its three words and what follows.
#[derive(Clone, Copy)]
pub(super) struct Type<'a> {
    pub(super) kind: Kind,
    /// The position of its name in the strings.
    pub(super) name: u32,
    pub(super) kind_flag: bool,
    /// Its size, or the type that it refers to.
    pub(super) word: u32,
    pub(super) tail: &'a [u8],
}

impl Type<'_> {
    /// Returns an array's element type and length.
    pub(super) fn array(&self) -> Option<(u32, u32)> {
        if self.kind != Kind::Array {
            return None;
        }
        u32_at(self.tail, 0).zip(u32_at(self.tail, 8))
    }
}

impl<'a> Btf<'a> {
    /// Walks the blob of the kernel, or of a module of this kernel. A type of an unknown kind is an error, since
    /// the types behind it cannot be found.
    pub(super) fn walk(kernel: Option<&'a Btf<'a>>, blob: &'a [u8]) -> Result<Self, String> {
        let have = blob.len();
        let cut = |what: &str, end: u64| format!("BTF is cut off: {what} reaches to byte {end} of {have}");
        let head = blob.get(..HEADER_BYTES).ok_or_else(|| cut("its header", HEADER_BYTES as u64))?;
        let magic = u16::from_ne_bytes([head[0], head[1]]);
        if magic != MAGIC {
            return Err(format!("no BTF: begins with {magic:#06x}"));
        }
        let word = |position| u64::from(u32_at(head, position).unwrap_or(0));
        let section = |what: &str, offset: u64, len: u64| {
            let start = word(4) + offset;
            let end = start + len;
            let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            range.and_then(|(start, end)| blob.get(start..end)).ok_or_else(|| cut(what, end))
        };
        let mut found = Self {
            kernel,
            types: section("the types", word(8), word(12))?,
            strings: section("the strings", word(16), word(20))?,
            starts: Vec::new(),
            named: Vec::new(),
            enumerators: Vec::new(),
        };
        // Most types have a tail, so this reserves a little more than is needed.
        found.starts.reserve_exact(found.types.len() / (TYPE_BYTES + 8));
        let mut at = 0;
        while at < found.types.len() {
            let id = found.kernel_types() + found.starts.len() as u32 + 1;
            let (one, next) = found.read(at).map_err(|kind| match kind {
                Some(kind) => format!("BTF type {id} is of unknown kind {kind}"),
                None => cut("a type", (at + TYPE_BYTES) as u64),
            })?;
            found.starts.push(at as u32);
            found.record_names(id, &one);
            at = next;
        }
        found.starts.shrink_to_fit();
        Ok(found)
    }

    fn record_names(&mut self, id: u32, found: &Type<'_>) {
        match found.kind {
            Kind::Struct | Kind::Func | Kind::Typedef => self.named.push((found.kind, found.name, id)),
            Kind::Enum => {
                let entries = found.tail.chunks_exact(8);
                let entries = entries.filter_map(|entry| u32_at(entry, 0).zip(u32_at(entry, 4)));
                self.enumerators.extend(entries.map(|(name, value)| (name, value.cast_signed())));
            }
            _ => {}
        }
    }

    /// Reads the type that begins at this byte. Also returns where the next one begins. The error is the
    /// unknown kind, or `None` if the type is cut off.
    fn read(&self, at: usize) -> Result<(Type<'a>, usize), Option<u32>> {
        let head = self.types.get(at..at.saturating_add(TYPE_BYTES)).ok_or(None)?;
        let word = |position| u32_at(head, position).ok_or(None);
        let info = word(4)?;
        let raw = (info >> 24) & 0x1f;
        let (kind, tail) = Kind::from_raw(raw, (info & 0xffff) as usize).ok_or(Some(raw))?;
        let next = at + TYPE_BYTES + tail;
        let tail = self.types.get(at + TYPE_BYTES..next).ok_or(None)?;
        let one = Type { kind, name: word(0)?, kind_flag: info >> 31 == 1, word: word(8)?, tail };
        Ok((one, next))
    }

    /// Returns how many types come before the first one of this blob.
    fn kernel_types(&self) -> u32 {
        self.kernel.map_or(0, |kernel| kernel.starts.len() as u32)
    }

    /// Returns the name at this position in the strings.
    pub(super) fn name(&self, position: u32) -> Option<&'a str> {
        let rest = self.strings_from(position)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }

    /// Returns whether this is the name at this position in the strings.
    pub(super) fn is_name(&self, position: u32, name: &str) -> bool {
        let rest = self.strings_from(position).and_then(|rest| rest.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Returns the strings from this position on.
    fn strings_from(&self, position: u32) -> Option<&'a [u8]> {
        let of_kernel = self.kernel.map_or(0, |kernel| kernel.strings.len());
        match (position as usize).checked_sub(of_kernel) {
            Some(own) => self.strings.get(own..),
            None => self.kernel?.strings_from(position),
        }
    }

    /// Returns the type with this number.
    pub(super) fn by_id(&self, id: u32) -> Option<Type<'a>> {
        let Some(own) = id.checked_sub(self.kernel_types() + 1) else {
            return self.kernel?.by_id(id);
        };
        let begin = *self.starts.get(own as usize)?;
        Some(self.read(begin as usize).ok()?.0)
    }

    /// Returns the type behind typedefs, qualifiers and tags.
    pub(super) fn underlying(&self, mut id: u32) -> Option<Type<'a>> {
        for _ in 0..CHAIN {
            let found = self.by_id(id)?;
            match found.kind {
                Kind::Typedef | Kind::Qualifier => id = found.word,
                _ => return Some(found),
            }
        }
        None
    }

    /// Returns the size in bytes of a type that is no array.
    pub(super) fn size(&self, id: u32) -> Option<u64> {
        let found = self.underlying(id)?;
        match found.kind {
            Kind::Ptr => Some(size_of::<usize>() as u64),
            Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => {
                Some(found.word.into())
            }
            _ => None,
        }
    }
}

/// Returns the word at this byte.
pub(super) fn u32_at(bytes: &[u8], position: usize) -> Option<u32> {
    let bytes = bytes.get(position..position.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
