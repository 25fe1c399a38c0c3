//! The version of the running kernel.

use std::fs;

/// A Linux version, such as 6.1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KernelVersion {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl KernelVersion {
    /// The version `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The version of the running kernel; `None` when it cannot be read.
    pub fn running() -> Option<Self> {
        Self::parse(&Self::running_release()?)
    }

    /// The release of the running kernel, as `uname -r` prints it; `None` when it cannot be read.
    pub fn running_release() -> Option<String> {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        Some(release.trim().to_owned())
    }

    /// Parses a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        for (text, version) in [
            ("6.1.0-18-amd64", Some((6, 1))),
            ("6.18.44", Some((6, 18))),
            ("5.14.0-427.el9.x86_64", Some((5, 14))),
            ("6", None),
            ("", None),
        ] {
            let expected = version.map(|(major, minor)| KernelVersion::new(major, minor));
            assert_eq!(KernelVersion::parse(text), expected, "{text}");
        }
    }
}
