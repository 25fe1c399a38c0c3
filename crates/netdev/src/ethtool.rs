//! Offload features and driver of a device (ethtool(8)), through the `SIOCETHTOOL` ioctl.
//!
//! Features have names (`tx-udp_tnl-segmentation`, `rx-gro` ...); their numbers differ between
//! kernels. [`hardware`] reads what is available over netlink.

pub mod hardware;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{Error, Netns, Result, check_link_name};

/// The ioctl and its commands, from linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
/// The string set of feature names.
const ETH_SS_FEATURES: u32 = 4;
/// Bytes per string of a string set.
const GSTRING_BYTES: usize = 32;
/// Length of `struct ethtool_drvinfo` in 32-bit words.
const DRVINFO_WORDS: usize = 49;
/// Far more features than any kernel has. A larger number is refused as malformed.
const FEATURES_MAX: usize = 1024;

/// A handle for the offload features and drivers of the namespace in which it was opened.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

/// The state of an offload feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    /// It can be changed.
    pub available: bool,
    /// It is requested.
    pub requested: bool,
    /// It is on.
    pub active: bool,
    /// It never changes, whatever `available` says.
    pub never_changed: bool,
}

/// The features of a device, by name.
pub type Features = BTreeMap<String, Feature>;

/// A feature that was not set as requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnchangedFeature {
    /// Its name.
    pub name: String,
    /// The requested state.
    pub requested: bool,
    /// Why it was not set.
    pub reason: UnchangedReason,
}

/// Why a feature was not set as requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnchangedReason {
    /// This kernel has no feature of that name.
    Unknown,
    /// The device cannot change it.
    Fixed,
    /// The request is recorded, but another feature that it depends on is off.
    Depends,
}

/// The driver of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DriverInfo {
    /// The driver: `veth`, `tun`, `mlx5_core` ...
    pub driver: String,
    /// Its version; by default that of the kernel.
    pub version: String,
    /// The version of the device's firmware; empty for software devices.
    pub firmware: String,
    /// The bus address of the device, such as a PCI address; empty for software devices.
    pub bus: String,
}

impl Ethtool {
    /// Opens a handle for the namespace of the calling thread; [`Netns::ethtool`] opens one for
    /// another namespace.
    pub fn open() -> Result<Self> {
        socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
            .map(|socket| Self { socket })
            .map_err(|errno| Error::os("open an ethtool socket", errno))
    }

    /// All features of the device `link`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when the device does not exist.
    pub fn features(&self, link: &str) -> Result<Features> {
        let names = self.feature_names(link)?;
        let values = self.feature_values(link, names.len())?;
        Ok(names.into_iter().zip(values).filter(|(name, _)| !name.is_empty()).collect())
    }

    /// Sets features of the device `link` in one step. Returns those that were not set as
    /// requested. The kernel may also change features that depend on them: without checksumming
    /// there is no segmentation.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when the device does not exist, [`Error::is_permission`] without
    /// CAP_NET_ADMIN.
    #[must_use = "a device that cannot set a feature returns no error; check what is unchanged"]
    pub fn set_features(
        &self,
        link: &str,
        requested: &[(&str, bool)],
    ) -> Result<Vec<UnchangedFeature>> {
        let names = self.feature_names(link)?;
        let before = self.feature_values(link, names.len())?;
        let place = |name: &str| names.iter().position(|known| known == name);
        let blocks = names.len().div_ceil(32);
        let mut request = vec![0; 2 + 2 * blocks];
        request[0] = ETHTOOL_SFEATURES;
        request[1] = blocks as u32;
        for &(name, on) in requested {
            // The kernel refuses the whole request if it holds a feature that cannot be changed.
            let switchable =
                |place: &usize| before[*place].available && !before[*place].never_changed;
            if let Some(place) = place(name).filter(switchable) {
                let (word, bit) = (2 + 2 * (place / 32), 1 << (place % 32));
                request[word] |= bit;
                request[word + 1] = request[word + 1] & !bit | if on { bit } else { 0 };
            }
        }
        self.call("set features of", link, &mut request)?;

        let after = self.feature_values(link, names.len())?;
        let reason = |name: &str, on| match place(name) {
            None => Some(UnchangedReason::Unknown),
            Some(place) if after[place].active == on => None,
            Some(place) if !after[place].available || after[place].never_changed => {
                Some(UnchangedReason::Fixed)
            }
            Some(_) => Some(UnchangedReason::Depends),
        };
        Ok(requested
            .iter()
            .filter_map(|&(name, requested)| {
                let reason = reason(name, requested)?;
                Some(UnchangedFeature { name: name.to_owned(), requested, reason })
            })
            .collect())
    }

    /// The driver of the device `link`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when the device does not exist; `EOPNOTSUPP` when its driver does
    /// not report it.
    pub fn driver(&self, link: &str) -> Result<DriverInfo> {
        let mut words = vec![0; DRVINFO_WORDS];
        words[0] = ETHTOOL_GDRVINFO;
        self.call("look up the driver of", link, &mut words)?;
        let texts = strings(&words[1..]);
        let mut next = texts.into_iter();
        let mut text = || next.next().unwrap_or_default();
        Ok(DriverInfo { driver: text(), version: text(), firmware: text(), bus: text() })
    }

    /// The names of the kernel's features in the order of their bits; some may be empty.
    fn feature_names(&self, link: &str) -> Result<Vec<String>> {
        let what = "list features of";
        // struct ethtool_sset_info: command, reserved, 64-bit mask of sets, a count per set bit.
        let mask = (1u64 << ETH_SS_FEATURES).to_ne_bytes();
        let [low, high] =
            [[mask[0], mask[1], mask[2], mask[3]], [mask[4], mask[5], mask[6], mask[7]]];
        let mut info =
            [ETHTOOL_GSSET_INFO, 0, u32::from_ne_bytes(low), u32::from_ne_bytes(high), 0];
        self.call(what, link, &mut info)?;
        let count = info[4] as usize;
        if count == 0 || count > FEATURES_MAX {
            return Err(Error::malformed(
                format!("{what} {link}"),
                format!("{count} features, expected 1 to {FEATURES_MAX}"),
            ));
        }
        // struct ethtool_gstrings: command, set, count, strings.
        let mut words = vec![0; 3 + count * GSTRING_BYTES / size_of::<u32>()];
        words[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
        self.call(what, link, &mut words)?;
        Ok(strings(&words[3..]))
    }

    fn feature_values(&self, link: &str, count: usize) -> Result<Vec<Feature>> {
        // struct ethtool_gfeatures: command, blocks; per block available, requested, active, never
        // changed.
        let blocks = count.div_ceil(32);
        let mut words = vec![0; 2 + 4 * blocks];
        words[0] = ETHTOOL_GFEATURES;
        words[1] = blocks as u32;
        self.call("read features of", link, &mut words)?;
        let bit = |place: usize, field: usize| {
            words[2 + 4 * (place / 32) + field] >> (place % 32) & 1 == 1
        };
        Ok((0..count)
            .map(|place| Feature {
                available: bit(place, 0),
                requested: bit(place, 1),
                active: bit(place, 2),
                never_changed: bit(place, 3),
            })
            .collect())
    }

    /// Issues one ioctl on `words`, which starts with the command. `words` must be as large as the
    /// structure of that command.
    fn call(&self, what: &str, link: &str, words: &mut [u32]) -> Result<()> {
        check_link_name(link)?;
        let mut request = IfReq {
            name: [0; libc::IFNAMSIZ],
            data: words.as_mut_ptr().cast(),
            _rest: [0; IfReq::REST],
        };
        request.name[..link.len()].copy_from_slice(link.as_bytes());
        // SAFETY: `request` is laid out as `struct ifreq`, and its name ends with a zero
        // (`check_link_name` allows at most 15 bytes). Its pointer is to `words`, which outlives
        // the call and is borrowed exclusively. The kernel reads and writes the structure of the
        // command there, and callers made room for it. GDRVINFO and GSSET_INFO (with one set) have
        // a fixed size, as has the used part of ethtool_rxnfc for GRXFH. GFEATURES and SFEATURES
        // stop at the number of blocks in the header. GSTRINGS writes as many strings as GSSET_INFO
        // counted, a constant of the running kernel.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
        // SFEATURES returns bits about features that it did not set. They are ignored, because the
        // caller reads the features again.
        Errno::result(result)
            .map(|_| ())
            .map_err(|errno| Error::os(format!("{what} {link}"), errno))
    }
}

impl Netns {
    /// An ethtool handle for this namespace, usable from any thread.
    pub fn ethtool(&self) -> Result<Ethtool> {
        self.run_in(Ethtool::open)?
    }
}

/// `struct ifreq` with the union member that ethtool uses.
#[repr(C)]
struct IfReq {
    name: [u8; libc::IFNAMSIZ],
    data: *mut c_void,
    _rest: [u8; Self::REST],
}

impl IfReq {
    /// The union has 24 bytes on 64-bit machines and fewer on others.
    const REST: usize = 24 - size_of::<*mut c_void>();
}

/// Splits the words that the kernel wrote into strings of 32 bytes that end at the first zero.
fn strings(words: &[u32]) -> Vec<String> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes
        .chunks_exact(GSTRING_BYTES)
        .map(|chunk| {
            let text = chunk.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_with_their_first_zero() {
        let mut bytes = [b'x'; 64];
        bytes[..8].copy_from_slice(b"rx-gro\0y");
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(strings(&words), ["rx-gro".to_owned(), "x".repeat(32)]);
    }

    #[test]
    fn loopback_has_features_without_privilege() {
        let features = Ethtool::open().unwrap().features("lo").unwrap();
        let (sg, gro) = (features["tx-scatter-gather"], features["rx-gro"]);
        assert!(sg.active && !sg.available && gro.available, "{sg:?} {gro:?}");
        assert!(features["vlan-challenged"].never_changed);
    }

    #[test]
    fn device_is_not_found_when_there_is_none() {
        let ethtool = Ethtool::open().unwrap();
        assert!(ethtool.features("no-such-device").unwrap_err().is_not_found());
        assert!(matches!(ethtool.features("a name too long").unwrap_err(), Error::Invalid { .. }));
    }
}
