//! [`DeviceCloser`]: closes devices on a thread of its own.

use super::device::Device;
use super::mailbox::ANSWER_TIMEOUT;
use datapath::DatapathError;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// A handle of the thread that closes the devices of removed ports.
///
/// Closing a device makes netlink requests in the network namespace of the switch, and waits for
/// the kernel's lock of devices. Workers must not wait so long, and the thread that removes a port
/// can be in another namespace. The thread ends when this handle is dropped.
#[derive(Debug)]
pub(super) struct DeviceCloser(Sender<(Device, Sender<()>)>);

impl DeviceCloser {
    /// Starts the thread in the network namespace of this one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start() -> io::Result<Self> {
        let (sender, devices) = channel::<(Device, Sender<()>)>();
        let close = move || {
            for (device, closed) in devices {
                drop(device);
                // Fails if nobody waits any more.
                let _ = closed.send(());
            }
        };
        thread::Builder::new().name("close-devices".to_owned()).spawn(close)?;
        Ok(Self(sender))
    }

    /// Closes a device, and waits until it is closed.
    ///
    /// # Errors
    /// [`DatapathError::Busy`] if that takes longer than 10 s. The device is still closed later.
    pub(super) fn close(&self, device: Device) -> Result<(), DatapathError> {
        let (closed, wait) = channel();
        self.0.send((device, closed)).map_err(|_| DatapathError::Stopped)?;
        wait.recv_timeout(ANSWER_TIMEOUT).map_err(|_| DatapathError::Busy)
    }
}
