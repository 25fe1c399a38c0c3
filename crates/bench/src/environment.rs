//! Where and when a study ran: what a reader must know before comparing its figures with others.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, fs};

/// The machine, its kernel and the moment.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Environment {
    /// Release of the running kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Model of the first processor, as it names itself.
    pub cpu_model: String,
    /// Processors that the study could use.
    pub cores: usize,
    /// Start of the study, UTC, RFC 3339.
    pub date: String,
    /// Version of weft.
    pub version: String,
    /// The commit it was built from, where the build knew.
    pub commit: Option<String>,
    /// Congestion control of the guests.
    pub congestion_control: String,
    /// What the kernel does against faults of the processor, which costs system calls: `name: state`.
    #[serde(default)]
    pub mitigations: Vec<String>,
    /// Version of Open vSwitch, where it is installed.
    #[serde(default)]
    pub open_vswitch: Option<String>,
}

impl Environment {
    /// Of this machine, now.
    pub fn read(commit: Option<String>) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self {
            kernel: kernel.trim().to_owned(),
            cpu_model: cpu_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: crate::lab::processors().len(),
            date: rfc3339(seconds),
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

/// What `/sys` says of each fault that a processor may have; nothing of those that this one has not.
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

/// What `ovs-vswitchd --version` says first.
fn open_vswitch() -> Option<String> {
    let output = std::process::Command::new("ovs-vswitchd").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

/// The name of the first processor. Only some architectures give one.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// `seconds` since 1970 as a date and time of day, UTC.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Years of 365 or 366 days, counted from 1 March 0000 so that the leap day is the last of its year; 400 of
    // them always have 146,097 days, and 1 January 1970 is day 719,468.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, months alternate 31 and 30 days twice within 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    let year = 400 * era + year_of_era + next_year;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_right_when_years_are_leap_or_not() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }

    #[test]
    fn cpu_model_is_found_when_there_is_one() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"),
            Some("Some CPU @ 2 GHz")
        );
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
