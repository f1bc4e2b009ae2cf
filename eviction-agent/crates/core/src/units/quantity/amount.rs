//! The number of a quantity: `int64Amount`, and `infDecAmount` where that is too small.

use std::cmp::Ordering;
use std::sync::Arc;

use num_bigint::BigInt;

use super::super::decimal::Decimal;

/// `value × 10^scale`, or a decimal of any precision.
#[derive(Clone, Debug)]
pub(super) enum Amount {
    Scaled { value: i64, scale: i32 },
    Decimal(Arc<Decimal>),
}

impl Amount {
    pub(super) fn signum(&self) -> i32 {
        match self {
            Self::Scaled { value, .. } => value.signum() as i32,
            Self::Decimal(decimal) => decimal.signum(),
        }
    }

    pub(super) fn decimal(&self) -> Arc<Decimal> {
        match self {
            Self::Scaled { value, scale } => Arc::new(Decimal::new(BigInt::from(*value), -i64::from(*scale))),
            Self::Decimal(decimal) => Arc::clone(decimal),
        }
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) => match x.cmp(y) {
                Ordering::Equal => a.cmp(b),
                Ordering::Greater => compare_scaled(*a, i64::from(*x) - i64::from(*y), *b),
                Ordering::Less => compare_scaled(*b, i64::from(*y) - i64::from(*x), *a).reverse(),
            },
            _ => self.decimal().compare(&other.decimal()),
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        if let (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) = (self, other)
            && let Some((value, scale)) = add_scaled((*a, *x), (*b, *y))
        {
            return Self::Scaled { value, scale };
        }
        Self::Decimal(Arc::new(self.decimal().plus(&other.decimal())))
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        if let (Self::Scaled { value: a, scale: x }, Self::Scaled { value: b, scale: y }) =
            (self, other)
            // Go negates without a look at the smallest number, which stays what it is.
            && let Some((value, scale)) = add_scaled((*a, *x), (b.wrapping_neg(), *y))
        {
            return Self::Scaled { value, scale };
        }
        let negated = Decimal::clone(&other.decimal()).negated();
        Self::Decimal(Arc::new(self.decimal().plus(&negated)))
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Scaled { value, scale: 0 } => Some(*value),
            Self::Scaled { value: 0, .. } => Some(0),
            Self::Scaled { value, scale } => {
                let factor = 10i64.checked_pow(scale.unsigned_abs())?;
                if *scale > 0 {
                    value.checked_mul(factor)
                } else {
                    (value % factor == 0).then(|| value / factor)
                }
            }
            Self::Decimal(decimal) => decimal.as_i64(),
        }
    }

    pub(super) fn as_nanos(&self) -> Option<i128> {
        match self {
            Self::Scaled { value: 0, .. } => Some(0),
            Self::Scaled { value, scale } => {
                let shift = scale.checked_add(9)?;
                let factor = 10i128.checked_pow(shift.unsigned_abs())?;
                if shift >= 0 {
                    i128::from(*value).checked_mul(factor)
                } else {
                    (i128::from(*value) % factor == 0).then(|| i128::from(*value) / factor)
                }
            }
            Self::Decimal(decimal) => decimal.as_nanos(),
        }
    }

    /// Go's `ScaledValue(0)`.
    pub(super) fn value(&self) -> i64 {
        match self {
            Self::Scaled { value, scale } if *scale < 0 => match 10i64.checked_pow(scale.unsigned_abs()) {
                Some(factor) => value / factor + i64::from(value % factor != 0) * value.signum(),
                None => value.signum(),
            },
            // What does not fit is cut to its low bits at some scales, and 0 at the others.
            Self::Scaled { value, scale } => match (self.as_i64(), scale) {
                (Some(exact), _) => exact,
                (None, 1 | 2 | 3 | 6 | 9) if *value != i64::MIN => {
                    value.wrapping_mul(10i64.pow(scale.unsigned_abs()))
                }
                (None, _) => 0,
            },
            Self::Decimal(decimal) => decimal.value(),
        }
    }
}

/// Compares `a × 10^shift` with `b`, for a positive shift.
fn compare_scaled(a: i64, shift: i64, b: i64) -> Ordering {
    match u32::try_from(shift) {
        Ok(shift) if shift <= 18 => (i128::from(a) * 10i128.pow(shift)).cmp(&i128::from(b)),
        // 10^19 is beyond every i64.
        _ if a == 0 => 0.cmp(&b),
        _ => a.cmp(&0),
    }
}

/// The sum of two scaled numbers at the lower scale, unless something does not fit.
fn add_scaled(a: (i64, i32), b: (i64, i32)) -> Option<(i64, i32)> {
    if b.0 == 0 {
        return Some(a);
    }
    if a.0 == 0 {
        return Some(b);
    }
    let (high, low) = if a.1 >= b.1 { (a, b) } else { (b, a) };
    let shift = u32::try_from(i64::from(high.1) - i64::from(low.1)).ok()?;
    let raised = high.0.checked_mul(10i64.checked_pow(shift)?)?;
    Some((raised.checked_add(low.0)?, low.1))
}
