//! A small reader of BTF, the kernel's description of its types: offsets of members, values of enumerators,
//! arguments of tracepoints.
//!
//! It walks the blob in place and records only where each type begins and where the names are: all of a
//! kernel's BTF as Rust values takes 40 MB, more than the rest of the agent. Any blob ends in a result or an
//! error, never in a panic.
#![forbid(unsafe_code)]

mod raw;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;

use raw::{CHAIN, Kind, Type, u32_at};

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
    named: Vec<(Kind, u32, u32)>,
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
    fn by_name(&self, kind: Kind, name: &str) -> Option<Type<'a>> {
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
            .by_name(Kind::Struct, structure)
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
        if !matches!(found.kind, Kind::Struct | Kind::Union) || depth > CHAIN {
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
            Kind::Struct => self.name(found.name),
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
        let typedef = self.by_name(Kind::Typedef, &format!("{TRACEPOINT}{name}"))?;
        let pointer = self.underlying(typedef.word).filter(|found| found.kind == Kind::Ptr)?;
        let prototype = self.underlying(pointer.word)?;
        if prototype.kind != Kind::FuncProto {
            return None;
        }
        // The first argument is the tracepoint's own data.
        Some(self.arguments(&prototype).skip(1).collect())
    }

    /// Returns the arguments of a function, or `None` if the kernel has none of that name that programs can be
    /// attached to. A function that the compiler has inlined everywhere is not there.
    pub fn function(&self, name: &str) -> Option<Vec<Argument>> {
        let function = self.by_name(Kind::Func, name)?;
        let prototype = self.underlying(function.word).filter(|found| found.kind == Kind::FuncProto)?;
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
            Kind::Ptr => match self.underlying(found.word) {
                Some(target) if matches!(target.kind, Kind::Struct | Kind::Fwd) => {
                    // An anonymous structure has an empty name. So has one whose name cannot be read: no method
                    // requires it.
                    Argument::Struct(self.name(target.name).unwrap_or_default().to_owned())
                }
                _ => Argument::Pointer,
            },
            Kind::Int | Kind::Enum => Argument::Number,
            _ => Argument::Other,
        }
    }
}

/// Returns the error about something that exists, but not in the form that is read.
pub(super) fn wrong_form(what: &str, form: &str) -> String {
    format!("this kernel's {what} is not {form}")
}
