//! CPU time, CPU affinity and memory use.

use std::fs;
use std::ops::Sub;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::{Error, Result};

/// The time that all CPUs together spent since boot, in ticks of [`ticks_per_second`].
///
/// Subtract two readings to get the time between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTimes {
    /// Processes at normal priority, including virtual machines on this host.
    pub user: u64,
    /// Processes at low priority.
    pub nice: u64,
    /// The kernel, on behalf of processes.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Idle while a process waits for a disk.
    pub iowait: u64,
    /// Hardware interrupts.
    pub irq: u64,
    /// Software interrupts, which include packet reception.
    pub softirq: u64,
    /// Stolen by the hypervisor.
    pub steal: u64,
}

impl CpuTimes {
    /// Reads the current times.
    pub fn now() -> Result<Self> {
        let what = "read /proc/stat";
        let text = fs::read_to_string("/proc/stat").map_err(|error| Error::os(what, error))?;
        Self::parse(&text).ok_or_else(|| Error::malformed(what, "no line of all processors"))
    }

    /// Parses the summary line of `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut fields = line.split_ascii_whitespace().map(str::parse);
        let mut next = || fields.next()?.ok();
        Some(Self {
            user: next()?,
            nice: next()?,
            system: next()?,
            idle: next()?,
            iowait: next()?,
            irq: next()?,
            softirq: next()?,
            steal: next()?,
        })
    }

    /// The time in which CPUs were busy, except for stolen time.
    pub const fn busy(self) -> u64 {
        self.user + self.nice + self.system + self.irq + self.softirq
    }

    /// The total time: number of CPUs times elapsed time.
    pub const fn total(self) -> u64 {
        self.busy() + self.idle + self.iowait + self.steal
    }

    /// The busy part of the total, 0.0 to 1.0 (0.0 when no tick has passed).
    pub fn utilisation(self) -> f64 {
        if self.total() == 0 { 0.0 } else { self.busy() as f64 / self.total() as f64 }
    }
}

/// The time between two readings. A counter that went backwards (idle times can, slightly) counts
/// 0.
impl Sub for CpuTimes {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// The unit of [`CpuTimes`] in ticks per second (USER_HZ), usually 100.
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf takes a number and touches none of our memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// The CPUs that the calling thread may use, in order. They need not start at 0 or be consecutive.
///
/// # Errors
/// The kernel refuses.
pub fn usable() -> Result<Vec<usize>> {
    let what = "read the CPU affinity of this thread";
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(|errno| Error::os(what, errno))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Pins the calling thread, and threads that it starts later, to the CPU `cpu` (from 0).
///
/// # Errors
/// The CPU does not exist, or this process may not use it.
pub fn pin_current_thread(cpu: usize) -> Result<()> {
    let what = || format!("pin a thread to CPU {cpu}");
    let mut set = CpuSet::new();
    set.set(cpu).map_err(|errno| Error::os(what(), errno))?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|errno| Error::os(what(), errno))
}

/// The processor time that the process `pid` has used, in user space and in the kernel, with that
/// of its ended threads.
///
/// # Errors
/// [`Error::is_not_found`] when the process does not exist.
pub fn process_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text =
        fs::read_to_string(&path).map_err(|error| Error::os(format!("read {path}"), error))?;
    let ticks = process_ticks(&text)
        .ok_or_else(|| Error::malformed(format!("read {path}"), "no utime and stime"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_second() as f64))
}

/// The sum of the fields 14 and 15 of `/proc/PID/stat`. The second field is a name in parentheses,
/// which may contain spaces and parentheses.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

/// The resident memory of the process `pid`, in bytes.
///
/// # Errors
/// [`Error::is_not_found`] when the process does not exist. [`Error::Malformed`] for a process
/// without memory: a kernel thread or a zombie.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text =
        fs::read_to_string(&path).map_err(|error| Error::os(format!("read {path}"), error))?;
    resident_of(&text).ok_or_else(|| Error::malformed(format!("read {path}"), "no VmRSS line"))
}

/// The kernel's "kB" are 1024 bytes.
fn resident_of(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 20 30 400 50 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\nintr 5\n";

    #[test]
    fn times_are_those_of_all_processors_together() {
        let times = CpuTimes::parse(STAT).unwrap();
        assert_eq!((times.user, times.softirq, times.steal), (10, 7, 8));
        assert_eq!((times.busy(), times.total()), (73, 531));
    }

    #[test]
    fn times_are_refused_when_the_line_is_short_or_missing() {
        for text in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(CpuTimes::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn difference_is_zero_when_a_counter_went_backwards() {
        let earlier = CpuTimes { idle: 5, user: 1, ..CpuTimes::default() };
        let later = CpuTimes { idle: 4, user: 3, ..CpuTimes::default() };
        assert_eq!(later - earlier, CpuTimes { user: 2, ..CpuTimes::default() });
        assert!((later - earlier).utilisation() == 1.0);
        assert!(CpuTimes::default().utilisation() == 0.0);
    }

    #[test]
    fn time_passes_when_a_thread_works() {
        let before = CpuTimes::now().unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 100 {
            std::hint::black_box(0);
        }
        let spent = CpuTimes::now().unwrap() - before;
        assert!(spent.busy() > 0 && spent.busy() <= spent.total(), "{spent:?}");
        assert!(ticks_per_second() >= 1);
    }

    #[test]
    fn time_of_a_process_is_read_when_its_name_has_parentheses() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 120 30 1 2";
        assert_eq!(process_ticks(stat), Some(150));
        for short in ["", "7 (a) S 1 2 3 4 5 6 7 8 9 10 120", "7 a S 1"] {
            assert_eq!(process_ticks(short), None, "{short:?}");
        }
        assert!(process_time(std::process::id()).is_ok());
        assert!(process_time(u32::MAX).unwrap_err().is_not_found());
    }

    #[test]
    fn resident_memory_grows_when_memory_is_written() {
        let before = resident_bytes(std::process::id()).unwrap();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_bytes(std::process::id()).unwrap();
        assert!(after >= before + (32 << 20), "{before} {after}");
        drop(memory);
    }

    #[test]
    fn resident_memory_is_not_found_when_there_is_no_process() {
        assert!(resident_bytes(u32::MAX).unwrap_err().is_not_found());
        assert_eq!(resident_of("Name:\tkthreadd\n"), None);
        assert_eq!(resident_of("VmRSS:\t    1234 kB\n"), Some(1234 * 1024));
    }

    #[test]
    fn thread_is_where_it_was_pinned() {
        // SAFETY: sched_getcpu takes nothing and returns a number.
        let current = || usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
        std::thread::spawn(move || {
            let cpu = current();
            pin_current_thread(cpu).unwrap();
            for _ in 0..100 {
                std::thread::yield_now();
                assert_eq!(current(), cpu);
            }
            assert_eq!(usable().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
        assert!(pin_current_thread(usize::MAX).is_err());
    }
}
