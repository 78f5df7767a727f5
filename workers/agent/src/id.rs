//! The name of an instance, checked before it becomes part of a path.

use std::{fmt, sync::Arc};

/// `inst-…`. Holds only `a-z`, `0-9` and `-`, so that it may name a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Arc<str>);

impl InstanceId {
    /// `None` if `text` is not the name of an instance.
    pub fn parse(text: &str) -> Option<Self> {
        let tail = text.strip_prefix("inst-")?;
        let fits = (1..=59).contains(&tail.len());
        let plain = tail
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        (fits && plain).then(|| Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_could_leave_its_directory_is_a_name() {
        assert!(InstanceId::parse("inst-0a1b2c3d4e").is_some());
        for bad in ["inst-", "inst-../x", "inst-A", "inst-a/b", "node-a", ""] {
            assert!(InstanceId::parse(bad).is_none(), "{bad}");
        }
    }
}
