//! How parts of an eviction are written.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Label, label_of};

/// What a pod goes for: one of those that there are.
pub(super) fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
    let text = Box::<str>::deserialize(deserializer)?;
    label_of(&text).ok_or_else(|| D::Error::custom(format_args!("nobody goes for {text:?}")))
}

/// What comes free, by signal, without those of which nothing is known.
pub(super) mod expected {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::expected_release::{Basis, ExpectedRelease};
    use crate::signal::Signal;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Expected {
        signal: Signal,
        amount: i64,
        basis: Basis,
    }

    /// Writes those that are known.
    pub(in super::super) fn serialize<S: Serializer>(
        releases: &[ExpectedRelease; Signal::COUNT],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let known = Signal::ALL
            .into_iter()
            .zip(releases)
            .filter(|(_, release)| **release != ExpectedRelease::UNKNOWN);
        serializer.collect_seq(known.map(|(signal, &ExpectedRelease { amount, basis })| Expected {
            signal,
            amount,
            basis,
        }))
    }

    /// Reads them; what is not named is unknown.
    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[ExpectedRelease; Signal::COUNT], D::Error> {
        let mut releases = [ExpectedRelease::UNKNOWN; Signal::COUNT];
        for Expected { signal, amount, basis } in Vec::deserialize(deserializer)? {
            releases[signal as usize] = ExpectedRelease { amount: amount.max(0), basis };
        }
        Ok(releases)
    }
}
