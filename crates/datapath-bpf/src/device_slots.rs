//! [`DeviceSlots`]: the slots of the map of devices, a hash table with linear probing.

use crate::abi::{WEFT_DEVICE_PROBES, WEFT_DEVICES};
use netdev::Ifindex;
use std::collections::HashSet;

/// A slot of the map that belongs to a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeviceSlot(u32);

impl DeviceSlot {
    pub(crate) fn key(&self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}

/// The slots in use.
#[derive(Debug, Default)]
pub(crate) struct DeviceSlots(HashSet<u32>);

impl DeviceSlots {
    /// Takes one of the slots where `device_of()` in `bpf/vif.bpf.c` looks for the device; `None`
    /// if all of these are taken.
    pub(crate) fn take(&mut self, device: Ifindex) -> Option<DeviceSlot> {
        let mut slots =
            (0..WEFT_DEVICE_PROBES).map(|probe| device.0.wrapping_add(probe) % WEFT_DEVICES);
        slots.find(|&slot| self.0.insert(slot)).map(DeviceSlot)
    }

    /// The number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn free(&mut self, slot: DeviceSlot) {
        self.0.remove(&slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_distinct_slots_when_their_hashes_are_equal() {
        let mut slots = DeviceSlots::default();
        let of = |number: u32| Ifindex(7 + number * WEFT_DEVICES);
        let taken: Vec<_> = (0..WEFT_DEVICE_PROBES).map(|number| slots.take(of(number))).collect();
        assert_eq!(taken, [7, 8, 9, 10].map(|place| Some(DeviceSlot(place))));
        assert_eq!(
            slots.take(of(WEFT_DEVICE_PROBES)),
            None,
            "all slots that a lookup probes are taken"
        );
        slots.free(DeviceSlot(8));
        assert_eq!(slots.take(of(WEFT_DEVICE_PROBES)), Some(DeviceSlot(8)));
        assert_eq!(slots.take(Ifindex(u32::MAX)), Some(DeviceSlot(WEFT_DEVICES - 1)), "the last");
        assert_eq!(slots.take(Ifindex(WEFT_DEVICES - 1)), Some(DeviceSlot(0)), "slots wrap around");
    }
}
