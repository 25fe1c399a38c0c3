//! [`DeviceSlots`]: where in the table of devices each is.

use crate::abi::{WEFT_DEVICE_PROBES, WEFT_DEVICES};
use netdev::Ifindex;
use std::collections::HashSet;

/// DeviceSlots in the table of devices, and in how many of them a program looks for one: `WEFT_WEFT_DEVICES` and `WEFT_DEVICE_WEFT_DEVICE_PROBES`.

/// A slot in the table of devices, which one device has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeviceSlot(u32);

impl DeviceSlot {
    pub(crate) fn key(&self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}

/// Who has which slot.
#[derive(Debug, Default)]
pub(crate) struct DeviceSlots(HashSet<u32>);

impl DeviceSlots {
    /// One of those where a program looks for a device: see `device_of()` in `bpf/vif.bpf.c`.
    pub(crate) fn take(&mut self, device: Ifindex) -> Option<DeviceSlot> {
        let mut slots =
            (0..WEFT_DEVICE_PROBES).map(|probe| device.0.wrapping_add(probe) % WEFT_DEVICES);
        slots.find(|&slot| self.0.insert(slot)).map(DeviceSlot)
    }

    pub(crate) fn free(&mut self, slot: DeviceSlot) {
        self.0.remove(&slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_slots_of_their_own_when_their_numbers_end_alike() {
        let mut slots = DeviceSlots::default();
        let of = |number: u32| Ifindex(7 + number * WEFT_DEVICES);
        let taken: Vec<_> = (0..WEFT_DEVICE_PROBES).map(|number| slots.take(of(number))).collect();
        assert_eq!(taken, [7, 8, 9, 10].map(|place| Some(DeviceSlot(place))));
        assert_eq!(slots.take(of(WEFT_DEVICE_PROBES)), None, "that would be another's");
        slots.free(DeviceSlot(8));
        assert_eq!(slots.take(of(WEFT_DEVICE_PROBES)), Some(DeviceSlot(8)));
        assert_eq!(slots.take(Ifindex(u32::MAX)), Some(DeviceSlot(WEFT_DEVICES - 1)), "the last");
        assert_eq!(slots.take(Ifindex(WEFT_DEVICES - 1)), Some(DeviceSlot(0)), "behind the last");
    }
}
