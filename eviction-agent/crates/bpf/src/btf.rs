//! A small reader of BTF, the kernel's description of its types: offsets of members, values of enumerators,
//! arguments of tracepoints.
//!
//! It walks the blob in place and records only where each type begins and where the names are: all of a
//! kernel's BTF as Rust values takes 40 MB, more than the rest of the agent. Any blob ends in a result or an
//! error, never in a panic.
#![forbid(unsafe_code)]

#[cfg(test)]
pub(super) mod tests;

use std::fmt;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;

/// The most references between types that are followed. Valid BTF has no longer chain of names for one type.
const CHAIN: usize = 32;

/// The prefix of the typedefs that describe tracepoints.
const TRACEPOINT: &str = "btf_trace_";

/// The position of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the start of the structure.
    pub offset: u32,
    /// Its type.
    type_id: u32,
}

impl Member {
    /// Returns a member of the structure that this member is, from the start of the outer structure.
    pub fn of(&self, inner: Member) -> Member {
        Member { offset: self.offset.saturating_add(inner.offset), ..inner }
    }
}

/// The type of an argument of a tracepoint or of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument<N = String> {
    /// A pointer to a structure of this name.
    Struct(N),
    /// A pointer to anything else.
    Pointer,
    /// A number.
    Number,
    /// Something else.
    Other,
}

impl Argument<&str> {
    /// Returns whether an argument has this type.
    pub(super) fn matches(&self, found: &Argument) -> bool {
        match (self, found) {
            (Self::Struct(name), Argument::Struct(found)) => name == found,
            (Self::Pointer, Argument::Pointer) | (Self::Number, Argument::Number) => true,
            _ => false,
        }
    }
}

impl<N: fmt::Display> fmt::Display for Argument<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Struct(name) => write!(f, "struct {name} *"),
            Self::Pointer => f.write_str("pointer"),
            Self::Number => f.write_str("number"),
            Self::Other => f.write_str("neither number nor pointer"),
        }
    }
}

/// The kinds of types (linux/btf.h) that the reader distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypeKind {
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

impl TypeKind {
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
struct Type<'a> {
    kind: TypeKind,
    /// The position of its name in the strings.
    name: u32,
    kind_flag: bool,
    /// Its size, or the type that it refers to.
    word: u32,
    tail: &'a [u8],
}

impl Type<'_> {
    /// Returns an array's element type and length.
    fn array(&self) -> Option<(u32, u32)> {
        if self.kind != TypeKind::Array {
            return None;
        }
        u32_at(self.tail, 0).zip(u32_at(self.tail, 8))
    }
}

/// The most members that are searched: more than any structure has, including nested ones. A garbled structure
/// could contain itself.
const MEMBERS: u32 = 100_000;

/// The types and names in a blob of BTF: the kernel's, or a module's, whose types continue the kernel's numbers.
///
/// A lookup compares all names of a kind one by one: there are about 100 lookups among 100,000 names, which
/// takes less time and memory than a map of all names.
pub struct Btf<'a> {
    kernel: Option<&'a Btf<'a>>,
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins; the first one of the kernel is type 1.
    starts: Vec<u32>,
    /// Each structure, function and typedef: its kind, the position of its name, and its number.
    named: Vec<(TypeKind, u32, u32)>,
    /// Each enumerator: the position of its name, and its value.
    enumerators: Vec<(u32, i32)>,
}

impl<'a> Btf<'a> {
    /// Reads the kernel's blob. The error says why it cannot be used.
    pub fn parse(blob: &'a [u8]) -> Result<Self, String> {
        Self::walk(None, blob)
    }

    /// Reads the blob of a module. Its types refer to those of this kernel and continue their numbers
    /// (Documentation/bpf/btf.rst).
    pub fn parse_module<'b>(&'b self, blob: &'b [u8]) -> Result<Btf<'b>, String> {
        Btf::walk(Some(self), blob)
    }

    /// Returns the first type of this kind and name.
    fn by_name(&self, kind: TypeKind, name: &str) -> Option<Type<'a>> {
        let mut named = self.named.iter();
        let (.., id) = named.find(|(found, position, _)| *found == kind && self.is_name(*position, name))?;
        self.by_id(*id)
    }

    /// Returns the value of an enumerator of any enumeration. The error says why there is none.
    pub fn enumerator(&self, name: &str) -> Result<i64, String> {
        let found = self.enumerators.iter().find(|(position, _)| self.is_name(*position, name));
        found
            .map(|(_, value)| i64::from(*value))
            .ok_or_else(|| format!("this kernel has no enumerator {name}"))
    }

    /// Returns the position of a structure's member, also of one in an anonymous structure or union inside it.
    pub fn member(&self, structure: &str, member: &str) -> Result<Member, String> {
        let found = self
            .by_name(TypeKind::Struct, structure)
            .ok_or_else(|| format!("this kernel has no struct {structure}"))?;
        let (bits, type_id, is_bitfield) = self
            .member_in(&found, member, 0, &mut { MEMBERS })
            .ok_or_else(|| format!("this kernel's struct {structure} has no {member}"))?;
        if is_bitfield || bits % 8 != 0 {
            return Err(wrong_form(&format!("{structure}.{member}"), "made of whole bytes"));
        }
        Ok(Member { offset: bits / 8, type_id })
    }

    /// Returns the member's position in bits, its type, and whether it is a bit field. Searches at most
    /// `budget` members.
    fn member_in(
        &self,
        found: &Type<'a>,
        wanted: &str,
        depth: usize,
        budget: &mut u32,
    ) -> Option<(u32, u32, bool)> {
        if !matches!(found.kind, TypeKind::Struct | TypeKind::Union) || depth > CHAIN {
            return None;
        }
        for entry in found.tail.chunks_exact(12) {
            *budget = budget.checked_sub(1)?;
            let (name, type_id, position) = (u32_at(entry, 0)?, u32_at(entry, 4)?, u32_at(entry, 8)?);
            let (bits, width) = match found.kind_flag {
                true => (position & 0xff_ffff, position >> 24),
                false => (position, 0),
            };
            match self.name(name) {
                Some("") => {
                    if let Some(inner) = self.underlying(type_id)
                        && let Some((more, type_id, is_bitfield)) =
                            self.member_in(&inner, wanted, depth + 1, budget)
                    {
                        return Some((bits.checked_add(more)?, type_id, is_bitfield));
                    }
                }
                Some(found) if found == wanted => return Some((bits, type_id, width != 0)),
                _ => {}
            }
        }
        None
    }

    /// Returns the name of the structure that a member is, if it is one.
    pub fn structure_of(&self, member: &Member) -> Option<&'a str> {
        let found = self.underlying(member.type_id)?;
        match found.kind {
            TypeKind::Struct => self.name(found.name),
            _ => None,
        }
    }

    /// Returns the element `index` of an array that is a member, from the start of the structure. An array of
    /// arrays counts as one of all their elements, as older kernels describe it.
    pub fn element(&self, what: &str, array: &Member, index: i64) -> Result<Member, String> {
        let (type_id, len) = self.elements(array.type_id).ok_or_else(|| wrong_form(what, "an array"))?;
        let index = u64::try_from(index).ok().filter(|index| *index < len);
        let index = index.ok_or_else(|| wrong_form(what, "long enough"))?;
        let size = self.size(type_id);
        let size = size.ok_or_else(|| wrong_form(what, "an array of a known size"))?;
        let offset = size
            .checked_mul(index)
            .and_then(|bytes| bytes.checked_add(u64::from(array.offset)))
            .and_then(|bytes| u32::try_from(bytes).ok());
        Ok(Member { offset: offset.ok_or_else(|| wrong_form(what, "of a possible size"))?, type_id })
    }

    /// Returns how many elements an array has, in all of its dimensions.
    pub fn len(&self, what: &str, array: &Member) -> Result<u64, String> {
        let found = self.elements(array.type_id).map(|(_, len)| len);
        found.ok_or_else(|| wrong_form(what, "an array"))
    }

    /// Returns the type of the innermost elements, and their number.
    fn elements(&self, array: u32) -> Option<(u32, u64)> {
        let (mut type_id, len) = self.underlying(array)?.array()?;
        let mut len = u64::from(len);
        for _ in 0..CHAIN {
            match self.underlying(type_id).and_then(|found| found.array()) {
                Some((inner, more)) => (type_id, len) = (inner, len.checked_mul(more.into())?),
                None => break,
            }
        }
        Some((type_id, len))
    }

    /// Returns the arguments of a tracepoint from its `btf_trace_` typedef, or `None` if the kernel has no such
    /// tracepoint.
    pub fn tracepoint(&self, name: &str) -> Option<Vec<Argument>> {
        let typedef = self.by_name(TypeKind::Typedef, &format!("{TRACEPOINT}{name}"))?;
        let pointer = self.underlying(typedef.word).filter(|found| found.kind == TypeKind::Ptr)?;
        let prototype = self.underlying(pointer.word)?;
        if prototype.kind != TypeKind::FuncProto {
            return None;
        }
        // The first argument is the tracepoint's own data.
        Some(self.arguments(&prototype).skip(1).collect())
    }

    /// Returns the arguments of a function, or `None` if the kernel has none of that name that programs can be
    /// attached to. A function that the compiler has inlined everywhere is not there.
    pub fn function(&self, name: &str) -> Option<Vec<Argument>> {
        let function = self.by_name(TypeKind::Func, name)?;
        let prototype = self.underlying(function.word).filter(|found| found.kind == TypeKind::FuncProto)?;
        Some(self.arguments(&prototype).collect())
    }

    fn arguments(&self, prototype: &Type<'a>) -> impl Iterator<Item = Argument> + '_ {
        let arguments = prototype.tail.chunks_exact(8);
        arguments.map(|entry| u32_at(entry, 4).map_or(Argument::Other, |id| self.argument(id)))
    }

    fn argument(&self, id: u32) -> Argument {
        let Some(found) = self.underlying(id) else {
            return Argument::Other;
        };
        match found.kind {
            TypeKind::Ptr => match self.underlying(found.word) {
                Some(target) if matches!(target.kind, TypeKind::Struct | TypeKind::Fwd) => {
                    // An anonymous structure has an empty name. So has one whose name cannot be read: no method
                    // requires it.
                    Argument::Struct(self.name(target.name).unwrap_or_default().to_owned())
                }
                _ => Argument::Pointer,
            },
            TypeKind::Int | TypeKind::Enum => Argument::Number,
            _ => Argument::Other,
        }
    }
}

/// The parts of the blob: where each type begins, and what follows its three words.
impl<'a> Btf<'a> {
    /// Walks the blob of the kernel, or of a module of this kernel. A type of an unknown kind is an error, since
    /// the types behind it cannot be found.
    fn walk(kernel: Option<&'a Btf<'a>>, blob: &'a [u8]) -> Result<Self, String> {
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
            TypeKind::Struct | TypeKind::Func | TypeKind::Typedef => {
                self.named.push((found.kind, found.name, id))
            }
            TypeKind::Enum => {
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
        let (kind, tail) = TypeKind::from_raw(raw, (info & 0xffff) as usize).ok_or(Some(raw))?;
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
    fn name(&self, position: u32) -> Option<&'a str> {
        let rest = self.strings_from(position)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }

    /// Returns whether this is the name at this position in the strings.
    fn is_name(&self, position: u32, name: &str) -> bool {
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
    fn by_id(&self, id: u32) -> Option<Type<'a>> {
        let Some(own) = id.checked_sub(self.kernel_types() + 1) else {
            return self.kernel?.by_id(id);
        };
        let begin = *self.starts.get(own as usize)?;
        Some(self.read(begin as usize).ok()?.0)
    }

    /// Returns the type behind typedefs, qualifiers and tags.
    fn underlying(&self, mut id: u32) -> Option<Type<'a>> {
        for _ in 0..CHAIN {
            let found = self.by_id(id)?;
            match found.kind {
                TypeKind::Typedef | TypeKind::Qualifier => id = found.word,
                _ => return Some(found),
            }
        }
        None
    }

    /// Returns the size in bytes of a type that is no array.
    fn size(&self, id: u32) -> Option<u64> {
        let found = self.underlying(id)?;
        match found.kind {
            TypeKind::Ptr => Some(size_of::<usize>() as u64),
            TypeKind::Int
            | TypeKind::Struct
            | TypeKind::Union
            | TypeKind::Enum
            | TypeKind::Enum64
            | TypeKind::Float => Some(found.word.into()),
            _ => None,
        }
    }
}

/// Returns the error about something that exists, but not in the form that is read.
pub(super) fn wrong_form(what: &str, form: &str) -> String {
    format!("this kernel's {what} is not {form}")
}

/// Returns the word at this byte.
fn u32_at(bytes: &[u8], position: usize) -> Option<u32> {
    let bytes = bytes.get(position..position.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
