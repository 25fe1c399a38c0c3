//! How the kernel spreads the packets of a device over processors: RPS, RFS and XPS, from `/sys/class/net`.
//!
//! `/sys` shows the network namespace in which it was mounted, so another one is looked at through a mount of its own, on a thread
//! that ends with it.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, unshare};
use nix::unistd::Pid;

use crate::netns::on_thread;
use crate::{Error, Link, Netns, Result};

const SYS: &str = "/sys";

/// A set of processors, as the kernel writes one: hexadecimal words of 32 bits with commas between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuMask(Vec<u32>);

impl CpuMask {
    /// Reads `ff,00000003`: the last word has the processors 0 to 31.
    pub fn parse(text: &str) -> Option<Self> {
        let words = text.trim().rsplit(',').map(|word| u32::from_str_radix(word, 16).ok());
        words.collect::<Option<Vec<_>>>().map(Self)
    }

    /// The processors that this process may use: those that are online, without those that are set aside for others.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn allowed() -> Result<Self> {
        let what = "list the processors of this process";
        let set = sched_getaffinity(Pid::from_raw(0)).map_err(|errno| Error::os(what, errno))?;
        Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
    }

    /// These processors.
    pub fn of(cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut words = vec![0];
        for cpu in cpus {
            let word = cpu / 32;
            if word >= words.len() {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << (cpu % 32);
        }
        Self(words)
    }

    /// How many processors it has.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Its processors, in order.
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

/// How the packets of one receive queue are spread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RxQueue {
    /// RPS: processors that the kernel hands packets to; none for the one that got the interrupt.
    pub rps_cpus: CpuMask,
    /// RFS: flows of which the kernel remembers where their programs run; 0 without.
    pub rps_flows: u32,
}

/// The queues of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Steering {
    /// Receive queues, in order.
    pub rx: Vec<RxQueue>,
    /// XPS of transmit queues, in order: which processors use it; `None` where there is one queue only.
    pub tx: Vec<Option<CpuMask>>,
}

impl Steering {
    /// Reads how the packets of `link`, which is of the calling thread's namespace, are spread.
    ///
    /// # Errors
    /// [`Error::is_permission`] when `/sys` shows another namespace and this process may not mount its own.
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
    /// [`Error::is_permission`] without the privilege, [`Error::is_not_found`] when there is no such queue.
    pub fn set_rps(link: &Link, queue: usize, cpus: &CpuMask) -> Result<()> {
        with_sys(link, |folder| {
            fs::write(folder.join(format!("queues/rx-{queue}/rps_cpus")), cpus.to_string())
                .map_err(|e| Error::os(format!("set RPS of queue {queue} of {}", link.name), e))
        })
    }
}

/// Does `work` with the folder of a link of this thread's namespace under `/sys/class/net`.
fn with_sys<R: Send>(link: &Link, work: impl FnOnce(&Path) -> Result<R> + Send) -> Result<R> {
    let folder = Path::new(SYS).join("class/net").join(&link.name);
    // Two namespaces may have links of one name and number; hardly with one address.
    let is_own = |path: &str, value: String| {
        fs::read_to_string(folder.join(path)).is_ok_and(|text| text.trim() == value)
    };
    if is_own("ifindex", link.index.to_string()) && is_own("address", link.mac.to_string()) {
        return work(&folder);
    }
    let netns = Netns::current()?;
    on_thread(move || {
        netns.enter_thread()?;
        let what = "look at /sys of this namespace";
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
    fn processors_fill_words() {
        let shown = [0, 1, 2, 32, 33].map(|count| (0..count).collect::<CpuMask>().to_string());
        assert_eq!(shown, ["0", "1", "3", "ffffffff", "1,ffffffff"]);
        assert_eq!([1, 3, 40].into_iter().collect::<CpuMask>().to_string(), "100,0000000a");
    }

    #[test]
    fn processors_of_this_process_are_those_it_is_kept_on() {
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
