//! Numbers, each written as its difference to the number at the same place of the sample before. Numbers that did
//! not change are counted, not written.

/// In a sample that was not passed to the engine, a value of a pod in bytes is written again only if it
/// has changed by more than this and by more than a percent.
const MIN_CHANGE_BYTES: u64 = 1 << 20;

/// The unit in bytes of differences that are a multiple of it, because differences of memory are whole
/// pages.
const PAGE: i64 = 4096;

/// A visitor that reads or replaces numbers.
pub(super) trait Visitor {
    /// Visits a number. `is_bytes`: small differences do not matter to users.
    fn number(&mut self, number: &mut u64, is_bytes: bool);
}

/// Maps a signed number to an unsigned one, which is small if the number is near 0.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Reverses [`zigzag`].
pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Writes differences.
pub(super) struct Writer<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    /// The number of unchanged values that are not written yet.
    unchanged: u64,
    out: &'a mut Vec<u8>,
    skips_small_changes: bool,
}

impl<'a> Writer<'a> {
    pub(super) fn new(before: &'a mut Vec<u64>, out: &'a mut Vec<u8>, skips_small_changes: bool) -> Self {
        Self { before, index: 0, unchanged: 0, out, skips_small_changes }
    }

    /// Writes the number of unchanged values.
    pub(super) fn end_run(&mut self) {
        if self.unchanged > 0 {
            varint(0, self.out);
            varint(u128::from(std::mem::take(&mut self.unchanged)), self.out);
        }
    }
}

impl Visitor for Writer<'_> {
    fn number(&mut self, number: &mut u64, is_bytes: bool) {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        let before = &mut self.before[self.index];
        self.index += 1;
        let is_small = || number.abs_diff(*before) <= MIN_CHANGE_BYTES.max(*before / 100);
        if *number == *before
            || (self.skips_small_changes && is_bytes && *before > 0 && *number > 0 && is_small())
        {
            self.unchanged += 1;
            return;
        }
        let difference = number.wrapping_sub(*before).cast_signed();
        *before = *number;
        self.end_run();
        let code = match difference % PAGE {
            0 => u128::from(zigzag(difference / PAGE)) << 1,
            _ => u128::from(zigzag(difference)) << 1 | 1,
        };
        varint(code, self.out);
    }
}

/// Appends a number with seven bits per byte, the lowest first.
fn varint(mut number: u128, out: &mut Vec<u8>) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Reads differences and adds them up.
pub(super) struct Reader<'a> {
    before: &'a mut Vec<u64>,
    index: usize,
    unchanged: u64,
    rest: &'a [u8],
    is_short: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(before: &'a mut Vec<u64>, rest: &'a [u8]) -> Self {
        Self { before, index: 0, unchanged: 0, rest, is_short: false }
    }

    pub(super) fn finish(self) -> Result<&'a [u8], &'static str> {
        if self.is_short || self.unchanged > 0 {
            Err("a sample does not fit its names")
        } else {
            Ok(self.rest)
        }
    }

    fn varint(&mut self) -> u128 {
        let mut number = 0;
        for shift in (0..70).step_by(7) {
            let Some((byte, rest)) = self.rest.split_first() else { break };
            self.rest = rest;
            number |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
        }
        self.is_short = true;
        0
    }
}

impl Visitor for Reader<'_> {
    // The fast path, because most numbers did not change.
    #[inline]
    fn number(&mut self, number: &mut u64, _: bool) {
        let Some(before) = self.before.get(self.index).filter(|_| self.unchanged > 0) else {
            *number = self.next();
            return;
        };
        *number = *before;
        self.index += 1;
        self.unchanged -= 1;
    }
}

impl Reader<'_> {
    #[cold]
    fn next(&mut self) -> u64 {
        if self.index == self.before.len() {
            self.before.push(0);
        }
        let index = self.index;
        self.index += 1;
        if self.unchanged == 0 && !self.is_short {
            match self.varint() {
                0 => self.unchanged = u64::try_from(self.varint()).unwrap_or(0),
                code => {
                    let difference = unzigzag(u64::try_from(code >> 1).unwrap_or(0));
                    let difference = if code & 1 == 0 { difference.wrapping_mul(PAGE) } else { difference };
                    self.before[index] = self.before[index].wrapping_add(difference.cast_unsigned());
                    return self.before[index];
                }
            }
            self.is_short |= self.unchanged == 0;
        }
        self.unchanged = self.unchanged.saturating_sub(1);
        self.before[index]
    }
}
