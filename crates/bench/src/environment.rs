//! The machine and the time of a run. Figures of different machines cannot be compared.

use std::{fmt, fs};

/// The machine, its kernel and the time.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Environment {
    /// Release of the running kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Model name of the first processor.
    pub cpu_model: String,
    /// Processors that this process could use.
    pub cores: usize,
    /// Start of the run, UTC, RFC 3339.
    pub date: String,
    /// Version of weft.
    pub version: String,
    /// The commit that weft was built from, if known.
    pub commit: Option<String>,
    /// The TCP congestion control of the guests, such as `cubic`.
    pub congestion_control: String,
    /// The kernel's mitigations of processor vulnerabilities, which make system calls slower:
    /// `name: state`.
    #[serde(default)]
    pub mitigations: Vec<String>,
    /// Version of Open vSwitch, if it is installed.
    #[serde(default)]
    pub open_vswitch: Option<String>,
}

impl Environment {
    /// This machine, now.
    pub fn read(commit: Option<String>) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().to_owned(),
            cpu_model: cpu_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: crate::lab::processors().len(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit,
            congestion_control: crate::lab::CONGESTION_CONTROL.to_owned(),
            mitigations: mitigations(),
            open_vswitch: open_vswitch(),
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, cpu_model, cores, date, version, commit, .. } = self;
        let commit = commit.as_deref().unwrap_or("commit unknown");
        write!(f, "{date}; {cores} x {cpu_model}; Linux {kernel}; weft {version} ({commit})")
    }
}

/// The state of each vulnerability that `/sys` reports, except those that do not affect this
/// processor.
fn mitigations() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let state = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let name = entry.file_name().into_string().ok()?;
        (text.trim() != "Not affected").then(|| format!("{name}: {}", text.trim()))
    };
    let mut all: Vec<_> = entries.flatten().filter_map(state).collect();
    all.sort();
    all
}

/// The first line of `ovs-vswitchd --version`.
fn open_vswitch() -> Option<String> {
    let output = std::process::Command::new("ovs-vswitchd").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

/// The model name of the first processor. Only some architectures report one.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_model_is_found_when_there_is_one() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"),
            Some("Some CPU @ 2 GHz")
        );
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
