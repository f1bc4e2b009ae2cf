//! Blobs made by hand, cut off and garbled.

use proptest::prelude::*;

use super::*;

/// Makes a blob, type by type.
#[derive(Default)]
pub(in super::super) struct Blob {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// The length of the kernel's strings, which come before those of a module.
    strings_before: u32,
    next: u32,
}

impl Blob {
    pub(in super::super) fn new() -> Self {
        Self { strings: vec![0], next: 1, ..Self::default() }
    }

    /// Begins the blob of a module of this kernel.
    pub(in super::super) fn module(&self) -> Self {
        Self { strings_before: self.strings.len() as u32, next: self.next, ..Self::default() }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let position = self.strings_before + self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        position
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    fn push_type(&mut self, name: &str, kind: u32, entries: usize, word: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        self.words(&[name, kind << 24 | entries as u32, word]);
        self.words(tail);
        self.next += 1;
        self.next - 1
    }

    pub(in super::super) fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.push_type(name, 1, 0, bytes, &[bytes * 8])
    }

    pub(in super::super) fn pointer(&mut self, to: u32) -> u32 {
        self.push_type("", 2, 0, to, &[])
    }

    pub(in super::super) fn array(&mut self, of: u32, len: u32) -> u32 {
        self.push_type("", 3, 0, 0, &[of, of, len])
    }

    /// Members are (name, type, byte offset).
    pub(in super::super) fn structure(
        &mut self,
        name: &str,
        bytes: u32,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let tail = self.members(members);
        self.push_type(name, 4, members.len(), bytes, &tail)
    }

    pub(in super::super) fn union(&mut self, bytes: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail = self.members(members);
        self.push_type("", 5, members.len(), bytes, &tail)
    }

    fn members(&mut self, members: &[(&str, u32, u32)]) -> Vec<u32> {
        members.iter().flat_map(|(name, id, offset)| [self.string(name), *id, offset * 8]).collect()
    }

    pub(in super::super) fn enumeration(&mut self, members: &[(&str, i32)]) -> u32 {
        let tail = members.iter().flat_map(|(name, value)| [self.string(name), value.cast_unsigned()]);
        let tail: Vec<_> = tail.collect();
        self.push_type("", 6, members.len(), 4, &tail)
    }

    pub(in super::super) fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.push_type(name, 8, 0, of, &[])
    }

    pub(in super::super) fn tracepoint(&mut self, name: &str, arguments: &[u32]) {
        let data = self.pointer(0);
        let tail: Vec<_> = [data].iter().chain(arguments).flat_map(|id| [0, *id]).collect();
        let prototype = self.push_type("", 13, tail.len() / 2, 0, &tail);
        let pointer = self.pointer(prototype);
        self.typedef(&format!("btf_trace_{name}"), pointer);
    }

    pub(in super::super) fn function(&mut self, name: &str, arguments: &[u32]) {
        let tail: Vec<_> = arguments.iter().flat_map(|id| [0, *id]).collect();
        let prototype = self.push_type("", 13, tail.len() / 2, 0, &tail);
        self.push_type(name, 12, 0, prototype, &[]);
    }

    pub(in super::super) fn bytes(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut blob = Vec::new();
        blob.extend(0xeb9f_u16.to_ne_bytes());
        blob.extend([1, 0]);
        for word in [24, 0, types, types, strings] {
            blob.extend(word.to_ne_bytes());
        }
        blob.extend(&self.types);
        blob.extend(&self.strings);
        blob
    }
}

fn sample() -> Blob {
    let mut blob = Blob::new();
    let long = blob.int("long", 8);
    let counter = blob.structure("counter", 40, &[("lock", long, 0), ("count", long, 8)]);
    let counters = blob.array(counter, 4);
    let union = blob.union(8, &[("swap", long, 0), ("memsw", long, 0)]);
    let inner = blob.structure("", 16, &[("", union, 8)]);
    blob.structure("outer", 200, &[("first", long, 0), ("", inner, 8), ("counters", counters, 24)]);
    blob.enumeration(&[("FIRST", 0), ("SECOND", 1), ("BELOW", -1)]);
    let task = blob.structure("task_struct", 8, &[]);
    let task = blob.pointer(task);
    let uid = blob.typedef("uid_t", long);
    blob.tracepoint("mark", &[task, uid, long]);
    let text = blob.pointer(long);
    blob.tracepoint("other", &[text, counter]);
    blob
}

#[test]
fn members_of_anonymous_structures_and_unions_are_found() {
    let blob = sample().bytes();
    let btf = Btf::parse(&blob).unwrap();
    assert_eq!(btf.member("outer", "first").unwrap().offset, 0);
    assert_eq!(btf.member("outer", "memsw").unwrap().offset, 16);
    let counters = btf.member("outer", "counters").unwrap();
    let third = btf.element("outer.counters", &counters, 2).unwrap();
    assert_eq!(third.offset, 24 + 2 * 40);
    assert_eq!(btf.structure_of(&third), Some("counter"));
    assert_eq!(btf.enumerator("BELOW").unwrap(), -1);
}

#[test]
fn error_names_the_missing_type_or_member() {
    let blob = sample().bytes();
    let btf = Btf::parse(&blob).unwrap();
    assert_eq!(btf.member("none", "x").unwrap_err(), "this kernel has no struct none");
    assert_eq!(btf.member("outer", "x").unwrap_err(), "this kernel's struct outer has no x");
    assert_eq!(btf.enumerator("THIRD").unwrap_err(), "this kernel has no enumerator THIRD");
    let first = btf.member("outer", "first").unwrap();
    let error = btf.element("outer.first", &first, 0).unwrap_err();
    assert_eq!(error, "this kernel's outer.first is not an array");
    let counters = btf.member("outer", "counters").unwrap();
    for index in [4, -1, i64::MAX] {
        let error = btf.element("outer.counters", &counters, index).unwrap_err();
        assert_eq!(error, "this kernel's outer.counters is not long enough");
    }
}

#[test]
fn a_bit_field_is_refused() {
    let mut blob = Blob::new();
    let int = blob.int("int", 4);
    let name = blob.string("flag");
    let structure = blob.string("bits");
    // kind_flag: the position's upper byte is the width.
    blob.words(&[structure, 1 << 31 | 4 << 24 | 1, 4, name, int, 1 << 24 | 8]);
    let blob = blob.bytes();
    let btf = Btf::parse(&blob).unwrap();
    let error = btf.member("bits", "flag").unwrap_err();
    assert_eq!(error, "this kernel's bits.flag is not made of whole bytes");
}

#[test]
fn tracepoints_have_their_arguments_without_the_first() {
    let blob = sample().bytes();
    let btf = Btf::parse(&blob).unwrap();
    let task = Argument::Struct("task_struct".to_owned());
    assert_eq!(btf.tracepoint("mark").unwrap(), [task, Argument::Number, Argument::Number]);
    assert_eq!(btf.tracepoint("other").unwrap(), [Argument::Pointer, Argument::Other]);
    assert_eq!(btf.tracepoint("none"), None);
}

/// The types of a module continue the kernel's numbers, and its strings begin where the kernel's end.
#[test]
fn a_modules_types_refer_to_those_of_the_kernel() {
    let kernel = sample();
    // Numbers of types in `sample`.
    let (long, task) = (1, 9);
    let mut module = kernel.module();
    let outer = module.structure("outer", 24, &[("own", long, 8), ("count", long, 16)]);
    let outer = module.pointer(outer);
    module.tracepoint("own", &[outer, long, task]);
    let (kernel, module) = (kernel.bytes(), module.bytes());
    let kernel = Btf::parse(&kernel).unwrap();
    let btf = kernel.parse_module(&module).unwrap();
    assert_eq!(btf.member("outer", "own").unwrap().offset, 8);
    assert!(btf.member("outer", "first").is_err(), "the kernel's structure of the same name");
    let [outer, task] = ["outer", "task_struct"].map(|name| Argument::Struct(name.to_owned()));
    assert_eq!(btf.tracepoint("own").unwrap(), [outer, Argument::Number, task]);
    assert_eq!(btf.tracepoint("mark"), None, "it is the kernel's");
    for end in 0..module.len() {
        assert!(kernel.parse_module(&module[..end]).is_err(), "cut at {end}");
    }
    // Without the kernel's types the module's own are not found, and nothing panics.
    query_everything(&module);
}

#[test]
fn functions_have_all_their_arguments() {
    let mut blob = Blob::new();
    let long = blob.int("long", 8);
    let counter = blob.structure("page_counter", 40, &[]);
    let counter = blob.pointer(counter);
    blob.function("charge", &[counter, long]);
    let blob = blob.bytes();
    let btf = Btf::parse(&blob).unwrap();
    let counter = Argument::Struct("page_counter".to_owned());
    assert_eq!(btf.function("charge").unwrap(), [counter, Argument::Number]);
    assert_eq!(btf.function("absent"), None);
}

#[test]
fn types_that_refer_to_themselves_are_not_found() {
    let mut blob = Blob::new();
    let itself = blob.next;
    blob.typedef("btf_trace_loop", itself);
    let itself = blob.next;
    let array = blob.array(itself, 2);
    blob.structure("outer", 8, &[("loop", array, 0), ("", itself + 1, 0)]);
    let blob = blob.bytes();
    let btf = Btf::parse(&blob).unwrap();
    assert_eq!(btf.tracepoint("loop"), None);
    let member = btf.member("outer", "loop").unwrap();
    assert!(btf.element("outer.loop", &member, 1).is_err());
    assert!(btf.member("outer", "elsewhere").is_err());
}

#[test]
fn search_in_a_structure_that_contains_itself_ends() {
    let mut blob = Blob::new();
    let itself = blob.next;
    blob.structure("outer", 8, &[("", itself, 0); 64]);
    let blob = blob.bytes();
    let btf = Btf::parse(&blob).unwrap();
    assert!(btf.member("outer", "none").is_err());
}

#[test]
fn a_foreign_blob_is_refused_with_its_reason() {
    let error = |blob: &[u8]| Btf::parse(blob).err().expect("an error");
    assert_eq!(error(b""), "BTF is cut off: its header reaches to byte 24 of 0");
    assert_eq!(error(&[0; 64]), "no BTF: begins with 0x0000");
    let mut unknown = Blob::new();
    unknown.int("int", 4);
    unknown.push_type("new", 31, 0, 0, &[]);
    assert_eq!(error(&unknown.bytes()), "BTF type 2 is of unknown kind 31");
}

fn query_everything(blob: &[u8]) {
    let Ok(btf) = Btf::parse(blob) else {
        return;
    };
    for member in ["first", "memsw", "counters", "none"] {
        if let Ok(member) = btf.member("outer", member) {
            let _ = btf.element("outer", &member, 3);
            let _ = btf.structure_of(&member);
        }
    }
    let _ = (btf.enumerator("SECOND"), btf.tracepoint("mark"), btf.tracepoint("other"));
}

#[test]
fn every_truncated_blob_is_an_error() {
    let blob = sample().bytes();
    for end in 0..blob.len() {
        assert!(Btf::parse(&blob[..end]).is_err(), "cut at {end}");
    }
}

proptest! {
    #[test]
    fn garbled_blobs_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut blob = sample().bytes();
        for (position, value) in changes {
            let position = position.index(blob.len());
            blob[position] = value;
        }
        query_everything(&blob);
    }

    #[test]
    fn random_bytes_behind_a_header_never_panic(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut blob = sample().bytes();
        blob.truncate(24);
        let len = noise.len() as u32;
        blob[12..16].copy_from_slice(&len.to_ne_bytes());
        blob[16..20].copy_from_slice(&0_u32.to_ne_bytes());
        blob[20..24].copy_from_slice(&len.to_ne_bytes());
        blob.extend(noise);
        query_everything(&blob);
    }
}
