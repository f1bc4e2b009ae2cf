//! As much of ELF as tells whether a program stands alone.

use anyhow::{Context as _, Result, bail};

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const SHT_SYMTAB: u32 = 2;
const DT_NEEDED: u64 = 1;

/// What a 64-bit little-endian ELF file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Whether it asks for a dynamic loader.
    pub(crate) has_interpreter: bool,
    /// Whether it asks for a shared library.
    pub(crate) has_needed: bool,
    /// Whether it has a symbol table beside the dynamic one.
    pub(crate) has_symbols: bool,
}

impl Elf {
    /// Reads the tables of a program.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            bail!("not a 64-bit little-endian ELF file");
        }
        let file = File(bytes);
        let mut elf = Self::default();
        for entry in file.table(0x20, 0x36, 0x38).context("the program headers")? {
            match file.u32(entry)? {
                PT_INTERP => elf.has_interpreter = true,
                PT_DYNAMIC => {
                    let (start, size) = (file.u64(entry + 8)?, file.u64(entry + 32)?);
                    elf.has_needed |= file.asks_for_libraries(start, size)?;
                }
                _ => {}
            }
        }
        for entry in file.table(0x28, 0x3a, 0x3c).context("the section headers")? {
            elf.has_symbols |= file.u32(entry + 4)? == SHT_SYMTAB;
        }
        Ok(elf)
    }
}

struct File<'a>(&'a [u8]);

impl File<'_> {
    /// The offsets of the entries of a table, whose own offset, entry size and length stand at
    /// these places of the file header.
    fn table(&self, offset: u64, size: u64, length: u64) -> Result<Vec<u64>> {
        let (start, size, length) = (self.u64(offset)?, self.u16(size)?, self.u16(length)?);
        (0..u64::from(length))
            .map(|n| start.checked_add(n * u64::from(size)).context("an offset beyond the file"))
            .collect()
    }

    fn asks_for_libraries(&self, start: u64, size: u64) -> Result<bool> {
        let end = start.checked_add(size).context("an offset beyond the file")?;
        let mut at = start;
        while at < end {
            if self.u64(at)? == DT_NEEDED {
                return Ok(true);
            }
            at += 16;
        }
        Ok(false)
    }

    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let start = usize::try_from(at).context("an offset beyond the file")?;
        self.0
            .get(start..)
            .and_then(|rest| rest.first_chunk())
            .copied()
            .with_context(|| format!("an offset beyond the file: {at:#x}"))
    }

    fn u16(&self, at: u64) -> Result<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Result<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Result<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic_and_has_symbols() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let expected = Elf { has_interpreter: true, has_needed: true, has_symbols: true };
        assert_eq!(Elf::read(&own).unwrap(), expected);
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_or_read_never_a_panic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for cut in (0..4096).chain((4096..own.len()).step_by(own.len() / 64)) {
            let _ = Elf::read(&own[..cut]);
        }
        let mut wild = own[..64].to_vec();
        wild[0x20..0x28].fill(0xff);
        assert!(Elf::read(&wild).is_err());
    }
}
