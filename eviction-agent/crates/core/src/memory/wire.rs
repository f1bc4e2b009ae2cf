//! How parts of a memory are written.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Label, label_of};

/// What a pod goes for: one of those that there are.
pub(super) fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    label_of(&text).ok_or_else(|| D::Error::custom(format_args!("nobody goes for {text:?}")))
}

/// What comes free, by signal, without those of which nothing is known.
pub mod expected {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::release::{Basis, Release};
    use crate::signal::Signal;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Expected {
        signal: Signal,
        amount: i64,
        basis: Basis,
    }

    /// Writes those that are known.
    pub fn serialize<S: Serializer>(
        releases: &[Release; Signal::COUNT],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let known =
            Signal::ALL.into_iter().zip(releases).filter(|(_, release)| **release != Release::UNKNOWN);
        serializer.collect_seq(known.map(|(signal, &Release { amount, basis })| Expected {
            signal,
            amount,
            basis,
        }))
    }

    /// Reads them; what is not named is unknown.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[Release; Signal::COUNT], D::Error> {
        let mut releases = [Release::UNKNOWN; Signal::COUNT];
        for Expected { signal, amount, basis } in Vec::deserialize(deserializer)? {
            releases[signal as usize] = Release { amount: amount.max(0), basis };
        }
        Ok(releases)
    }
}
