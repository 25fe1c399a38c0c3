//! How the kernel spreads the packets of a device over CPUs: RPS, RFS and XPS, from
//! `/sys/class/net`.
//!
//! `/sys` shows the network namespace in which it was mounted. Another namespace is read on a
//! temporary thread, which mounts its own `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::netns::on_thread;
use crate::{Error, Link, Netns, Result, cpu};

const SYS: &str = "/sys";

/// A set of CPUs, formatted as the kernel does: hexadecimal words of 32 bits with commas between.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuMask(Vec<u32>);

impl CpuMask {
    /// Parses `ff,00000003`; the last word holds the CPUs 0 to 31.
    pub fn parse(text: &str) -> Option<Self> {
        let words = text.trim().rsplit(',').map(|word| u32::from_str_radix(word, 16).ok());
        words.collect::<Option<Vec<_>>>().map(Self)
    }

    /// The CPUs that the calling thread may use: those that are online and in its affinity mask.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn allowed() -> Result<Self> {
        Ok(cpu::usable()?.into_iter().collect())
    }

    /// The number of CPUs.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            (0..32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 32 + bit)
        })
    }
}

impl FromIterator<usize> for CpuMask {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut words = Vec::new();
        for cpu in cpus {
            words.resize(words.len().max(cpu / 32 + 1), 0u32);
            if let Some(word) = words.get_mut(cpu / 32) {
                *word |= 1 << (cpu % 32);
            }
        }
        Self(words)
    }
}

impl std::fmt::Display for CpuMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words = self.0.iter().rev().skip_while(|word| **word == 0);
        match words.next() {
            None => return f.write_str("0"),
            Some(first) => write!(f, "{first:x}")?,
        }
        words.try_for_each(|word| write!(f, ",{word:08x}"))
    }
}

/// The packet steering of one receive queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RxQueue {
    /// RPS: the CPUs that process the packets; empty for the CPU that got the interrupt.
    pub rps_cpus: CpuMask,
    /// RFS: the size of the flow table; 0 when it is off.
    pub rps_flows: u32,
}

/// The packet steering of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Steering {
    /// Receive queues, in order.
    pub rx: Vec<RxQueue>,
    /// XPS of the transmit queues, in order: the CPUs that use each; `None` with a single queue.
    pub tx: Vec<Option<CpuMask>>,
}

impl Steering {
    /// Reads the packet steering of `link`, a link of the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::is_permission`] when `/sys` shows another namespace and this process may not mount
    /// its own.
    pub fn read(link: &Link) -> Result<Self> {
        with_sys(link, |folder| Ok(Self::in_folder(folder)))
    }

    fn in_folder(folder: &Path) -> Self {
        let text = |path: PathBuf| fs::read_to_string(path).ok();
        let mask = |path: PathBuf| CpuMask::parse(&text(path)?);
        let queue = |kind: &str, number: usize| {
            let path = folder.join(format!("queues/{kind}-{number}"));
            path.is_dir().then_some(path)
        };
        let rx = (0..).map_while(|number| queue("rx", number)).map(|path| RxQueue {
            rps_cpus: mask(path.join("rps_cpus")).unwrap_or_default(),
            rps_flows: text(path.join("rps_flow_cnt"))
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
        });
        let tx = (0..).map_while(|number| queue("tx", number));
        Self { rx: rx.collect(), tx: tx.map(|path| mask(path.join("xps_cpus"))).collect() }
    }

    /// Sets RPS of a receive queue of `link`.
    ///
    /// # Errors
    /// [`Error::is_permission`] without the privilege, [`Error::is_not_found`] when there is no
    /// such queue.
    pub fn set_rps(link: &Link, queue: usize, cpus: &CpuMask) -> Result<()> {
        with_sys(link, |folder| {
            fs::write(folder.join(format!("queues/rx-{queue}/rps_cpus")), cpus.to_string())
                .map_err(|e| Error::os(format!("set RPS of queue {queue} of {}", link.name), e))
        })
    }
}

/// Calls `work` with the directory of a link of this thread's namespace under `/sys/class/net`.
fn with_sys<R: Send>(link: &Link, work: impl FnOnce(&Path) -> Result<R> + Send) -> Result<R> {
    let folder = Path::new(SYS).join("class/net").join(&link.name);
    // Two namespaces may have links of the same name and index, but hardly with the same address.
    let is_own = |path: &str, value: String| {
        fs::read_to_string(folder.join(path)).is_ok_and(|text| text.trim() == value)
    };
    if is_own("ifindex", link.index.to_string()) && is_own("address", link.mac.to_string()) {
        return work(&folder);
    }
    let netns = Netns::current()?;
    on_thread(move || {
        netns.enter_thread()?;
        let what = "mount /sys for this namespace";
        unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| Error::os(what, errno))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .and_then(|()| mount(Some("sysfs"), SYS, Some("sysfs"), MsFlags::empty(), None::<&str>))
            .map_err(|errno| Error::os(what, errno))?;
        work(&folder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_as_the_kernel_writes_them() {
        let table = [
            ("0", 0, vec![], "0"),
            ("3\n", 2, vec![0, 1], "3"),
            ("00000001,00000000", 1, vec![32], "1,00000000"),
            ("00000000,80000000", 1, vec![31], "80000000"),
        ];
        for (text, count, cpus, shown) in table {
            let mask = CpuMask::parse(text).unwrap();
            assert_eq!((mask.count(), mask.iter().collect::<Vec<_>>()), (count, cpus), "{text}");
            assert_eq!(mask.to_string(), shown);
        }
        assert_eq!((CpuMask::parse(""), CpuMask::parse("x,1")), (None, None));
    }

    #[test]
    fn masks_are_written_in_words_of_32_bits() {
        let shown = [0, 1, 2, 32, 33].map(|count| (0..count).collect::<CpuMask>().to_string());
        assert_eq!(shown, ["0", "1", "3", "ffffffff", "1,ffffffff"]);
        assert_eq!([1, 3, 40].into_iter().collect::<CpuMask>().to_string(), "100,0000000a");
    }

    #[test]
    fn allowed_cpus_are_those_of_the_affinity_mask() {
        let all = CpuMask::allowed().unwrap();
        let last = all.iter().last().unwrap();
        std::thread::spawn(move || {
            crate::cpu::pin_current_thread(last).unwrap();
            assert_eq!(CpuMask::allowed().unwrap(), [last].into_iter().collect());
        })
        .join()
        .unwrap();
    }
}
