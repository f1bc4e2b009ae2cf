//! Writing quantities: `CanonicalizeBytes`.

use std::fmt;

use super::amount::Amount;
use super::{Format, Quantity};

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::BinarySi
            && self.is_beyond_1024()
            && let Some((digits, times)) = canonical_1024(&self.amount)
        {
            return write!(f, "{digits}{}", binary_suffix(times));
        }
        let (digits, exponent) = canonical(&self.amount);
        match (self.format, exponent) {
            (Format::DecimalExponent, 0) => f.write_str(&digits),
            (Format::DecimalExponent, _) => write!(f, "{digits}e{exponent}"),
            _ => write!(f, "{digits}{}", decimal_suffix(exponent)),
        }
    }
}

impl Quantity {
    fn is_beyond_1024(&self) -> bool {
        const LIMIT: Quantity = Quantity::from_i64(1024, Format::BinarySi);
        const NEGATIVE: Quantity = Quantity::from_i64(-1024, Format::BinarySi);
        *self >= LIMIT || *self <= NEGATIVE
    }
}

/// Digits and an exponent of ten that is a multiple of three.
fn canonical(amount: &Amount) -> (String, i32) {
    match amount {
        Amount::Scaled { value, scale } => {
            let (mut value, mut exponent) = (i128::from(*value), *scale);
            while value != 0 && value % 10 == 0 {
                value /= 10;
                // Exponents wrap around in Go.
                exponent = exponent.wrapping_add(1);
            }
            let down = exponent.rem_euclid(3);
            value *= 10i128.pow(down.unsigned_abs());
            (value.to_string(), exponent.wrapping_sub(down))
        }
        Amount::Decimal(decimal) => {
            let (digits, exponent) = decimal.canonical();
            (digits, exponent as i32)
        }
    }
}

/// Digits and an exponent of 1024, if the number is an integer.
fn canonical_1024(amount: &Amount) -> Option<(String, u32)> {
    let mut value = match amount {
        Amount::Scaled { .. } => match amount.as_i64() {
            // Go takes the factors out of the negated number, which does not exist.
            Some(i64::MIN) => return Some((i64::MIN.to_string(), 0)),
            Some(value) => value,
            None => return amount.decimal().canonical_1024(),
        },
        Amount::Decimal(decimal) => return decimal.canonical_1024(),
    };
    let mut times = 0;
    while value != 0 && value % 1024 == 0 {
        value /= 1024;
        times += 1;
    }
    Some((value.to_string(), times))
}

/// Beyond the table Go writes no suffix at all.
fn binary_suffix(times: u32) -> &'static str {
    match times {
        1 => "Ki",
        2 => "Mi",
        3 => "Gi",
        4 => "Ti",
        5 => "Pi",
        6 => "Ei",
        _ => "",
    }
}

/// Beyond the table Go writes no suffix at all: `1000E` becomes `1`.
fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
}
