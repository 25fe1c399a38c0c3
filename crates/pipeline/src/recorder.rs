//! Reads a flow key such that every bit read is recorded in the mask of the megaflow.

use flow::{Field, FlowKey, FlowMask, PACKET_WORDS, Subfield, TRACKED_WORDS, low_bits};

/// Read access to a flow key that records which bits were read.
pub trait Recorder {
    /// The bits of `field` that are 1 in `mask`, not shifted; the other bits are 0.
    fn read(&mut self, field: Field, mask: u128) -> u128;

    /// A range of bits of a field, right aligned.
    #[inline]
    fn read_bits(&mut self, bits: Subfield) -> u128 {
        self.read(bits.field(), bits.field_mask()) >> bits.first() & low_bits(bits.width())
    }

    /// A whole field.
    #[inline]
    fn read_field(&mut self, field: Field) -> u128 {
        self.read(field, field.all_ones())
    }
}

/// A word of a flow key that is saved between two passes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SavedWord {
    at: u8,
    /// The written bits.
    mask: u64,
    /// Their value; 0 elsewhere.
    value: u64,
}

/// The flow key of a packet during translation.
///
/// Reading a bit that came with the packet adds it to the mask. Reading a bit that the program has
/// written adds nothing: it has the same value for every packet of the megaflow, because copied
/// bits were recorded when they were copied.
#[derive(Clone, Debug)]
pub struct RecordedKey {
    key: FlowKey,
    /// Bits whose value follows from the program and from recorded bits.
    written: FlowMask,
    /// Written bits and recorded bits: reading them again does not enlarge the mask. Lookups use
    /// this to prefer subtables that cost no new bits; their recording does not rely on it.
    known: FlowMask,
    /// Swapped fields: unwritten bits of the first field arrived in the second field of the packet.
    moved: Vec<(Field, Field)>,
}

impl RecordedKey {
    /// The key of a packet that enters the program. Registers count as written: they are 0 at first
    /// in every packet.
    pub fn new(key: FlowKey) -> Self {
        let mut written = FlowMask::default();
        let [before, after] = PACKET_WORDS;
        written.words_mut()[before.end..after.start].fill(u64::MAX);
        written.add(Field::PktMark);
        Self { key, known: written.clone(), written, moved: Vec::new() }
    }

    /// The key of a packet that begins a later pass, with the words that [`saved`](Self::saved) has
    /// returned. Registers and other saved bits count as written. The fields of connection
    /// tracking came with the packet.
    pub fn resumed(key: FlowKey, saved: &[SavedWord]) -> Self {
        let mut resumed = Self::new(key);
        let registers = PACKET_WORDS[0].end..TRACKED_WORDS.start;
        resumed.key.words_mut()[registers].fill(0);
        resumed.key.set(Field::PktMark, 0);
        resumed.written.words_mut()[TRACKED_WORDS].fill(0);
        for word in saved {
            let at = usize::from(word.at);
            let (Some(key), Some(written)) =
                (resumed.key.words_mut().get_mut(at), resumed.written.words_mut().get_mut(at))
            else {
                continue;
            };
            *key = *key & !word.mask | word.value;
            *written |= word.mask;
        }
        resumed.known = resumed.written.clone();
        resumed
    }

    /// The words outside the frame that a later pass cannot restore from the packet: registers, and
    /// written bits of the metadata.
    pub fn saved(&self) -> Box<[SavedWord]> {
        let words = 0..TRACKED_WORDS.start;
        let is_register = |at: &usize| *at >= PACKET_WORDS[0].end;
        let saved = words.filter_map(|at| {
            let mask = self.written.words()[at];
            let value = self.key.words()[at] & mask;
            // Registers are written in every packet, and 0 by default.
            let is_default = value == 0 && (mask == 0 || is_register(&at));
            // The cast is lossless: a key has fewer than 256 words.
            (!is_default).then_some(SavedWord { at: at as u8, mask, value })
        });
        saved.collect()
    }

    /// A reader that adds the bits it reads to `read`.
    #[inline]
    pub fn recorder<'a>(&'a mut self, read: &'a mut FlowMask) -> impl Recorder + use<'a> {
        KeyReader { key: self, read }
    }

    /// Writes the bits of a field that are 1 in `mask`. `value` must follow from the program and
    /// from recorded bits.
    #[inline]
    pub fn write(&mut self, field: Field, value: u128, mask: u128) {
        let kept = self.key.get(field) & !mask;
        self.key.set(field, kept | value & mask);
        self.written.add_bits(field, mask);
        self.known.add_bits(field, mask);
    }

    /// Runs a lookup on the plain key. `lookup` gets the mask of known bits and adds every bit that
    /// it depends on; new bits that are not written are then added to `read`.
    #[inline]
    pub fn look_up<R>(
        &mut self,
        read: &mut FlowMask,
        lookup: impl FnOnce(&FlowKey, &mut FlowMask) -> R,
    ) -> R {
        let result = lookup(&self.key, &mut self.known);
        if self.moved.is_empty() {
            let (known, written) = (self.known.words(), self.written.words());
            for ((read, known), written) in read.words_mut().iter_mut().zip(known).zip(written) {
                *read |= known & !written;
            }
        } else {
            self.record_moved(read);
        }
        result
    }

    /// Adds all known bits that are not written to `read`, under the field in which they came with
    /// the packet.
    fn record_moved(&self, read: &mut FlowMask) {
        let mut used = self.known.clone();
        used.words_mut().iter_mut().zip(self.written.words()).for_each(|(a, b)| *a &= !b);
        for &(field, origin) in &self.moved {
            read.add_bits(origin, used.get(field));
            used.set(field, 0);
        }
        read.union(&used);
    }

    /// Marks bits as known that were recorded for another copy of the packet.
    pub fn know(&mut self, read: &FlowMask) {
        if self.moved.is_empty() {
            return self.known.union(read);
        }
        let mut read = read.clone();
        let moved: Vec<_> = self.moved.iter().map(|&(at, origin)| (at, read.get(origin))).collect();
        moved.into_iter().for_each(|(field, bits)| read.set(field, bits));
        self.known.union(&read);
    }

    /// Swaps two fields of equal width without recording them. A bit that is read later is recorded
    /// under the field in which it came with the packet.
    pub fn swap(&mut self, a: Field, b: Field) {
        let exchange = |mask: &mut FlowMask| {
            let (of_a, of_b) = (mask.get(a), mask.get(b));
            mask.set(a, of_b);
            mask.set(b, of_a);
        };
        exchange(&mut self.written);
        exchange(&mut self.known);
        let (of_a, of_b) = (self.key.get(a), self.key.get(b));
        self.key.set(a, of_b);
        self.key.set(b, of_a);
        let origins = [(a, self.origin(b)), (b, self.origin(a))];
        self.moved.retain(|(field, _)| ![a, b].contains(field));
        self.moved.extend(origins.into_iter().filter(|(field, origin)| field != origin));
    }

    /// Inverts bits without recording them.
    pub fn flip(&mut self, bits: Subfield) {
        self.key.set_bits(bits, !self.key.get_bits(bits));
    }

    /// The field in which the value of this field came with the packet.
    #[inline]
    fn origin(&self, field: Field) -> Field {
        let moved = self.moved.iter().find(|(at, _)| *at == field);
        moved.map_or(field, |&(_, origin)| origin)
    }

    /// The plain key, for display and comparison only: reading it records nothing.
    #[inline]
    pub const fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The bits whose value follows from the program and from recorded bits.
    #[inline]
    pub const fn written(&self) -> &FlowMask {
        &self.written
    }
}

struct KeyReader<'a> {
    key: &'a mut RecordedKey,
    read: &'a mut FlowMask,
}

impl Recorder for KeyReader<'_> {
    #[inline]
    fn read(&mut self, field: Field, mask: u128) -> u128 {
        let unknown = mask & !self.key.written.get(field);
        if unknown != 0 {
            self.read.add_bits(self.key.origin(field), unknown);
            self.key.known.add_bits(field, unknown);
        }
        self.key.key.get(field) & mask
    }
}

/// A recorder for a plain key: it adds every bit read to a mask. Residual predicates use it inside
/// a lookup.
#[derive(Debug)]
pub struct PlainRecorder<'a> {
    /// The key.
    pub key: &'a FlowKey,
    /// The bits read so far.
    pub read: &'a mut FlowMask,
}

impl Recorder for PlainRecorder<'_> {
    #[inline]
    fn read(&mut self, field: Field, mask: u128) -> u128 {
        self.read.add_bits(field, mask);
        self.key.get(field) & mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_words_restore_what_was_written() {
        let mut first = FlowKey::default();
        first.set(Field::TunId, 7);
        first.set(Field::InPort, 3);
        let mut key = RecordedKey::new(first.clone());
        key.write(Field::Reg3, 5, u128::MAX);
        key.write(Field::TunId, 0x100, 0xff00);
        key.write(Field::PktMark, 9, u128::MAX);
        let mut second = first;
        second.set(Field::CtState, 0x21);
        second.set(Field::RecircId, 1);
        let mut read = FlowMask::default();
        let mut resumed = RecordedKey::resumed(second, &key.saved());
        let mut reader = resumed.recorder(&mut read);
        let values = [Field::Reg3, Field::Reg4, Field::PktMark].map(|f| reader.read_field(f));
        assert_eq!((values, reader.read(Field::TunId, 0xff00)), ([5, 0, 9], 0x100));
        drop(reader);
        assert_eq!(read, FlowMask::default());
        let mut reader = resumed.recorder(&mut read);
        assert_eq!((reader.read(Field::TunId, 0xff), reader.read(Field::CtState, 1)), (7, 1));
        assert_eq!(reader.read_field(Field::RecircId), 1);
        drop(reader);
        assert_eq!((read.get(Field::TunId), read.get(Field::CtState)), (0xff, 1));
    }

    const PORTS: [(Field, u128); 2] = [(Field::TpSrc, 1000), (Field::TpDst, 80)];

    fn key() -> RecordedKey {
        let mut key = FlowKey::default();
        PORTS.iter().for_each(|&(field, value)| key.set(field, value));
        RecordedKey::new(key)
    }

    #[test]
    fn swapped_field_is_recorded_under_its_origin() {
        let (mut key, mut read) = (key(), FlowMask::default());
        key.write(Field::TpDst, 0, 0xff);
        key.swap(Field::TpSrc, Field::TpDst);
        assert_eq!(read, FlowMask::default());
        // The lower half was written before the swap.
        assert_eq!(key.recorder(&mut read).read_field(Field::TpSrc), 0);
        assert_eq!((read.get(Field::TpSrc), read.get(Field::TpDst)), (0, 0xff00));
        key.look_up(&mut read, |key, read| {
            assert_eq!(key.get(Field::TpDst), 1000);
            read.add_bits(Field::TpDst, 0xf);
        });
        assert_eq!((read.get(Field::TpSrc), read.get(Field::TpDst)), (0xf, 0xff00));
        key.swap(Field::TpSrc, Field::TpDst);
        assert_eq!(key.recorder(&mut read).read(Field::TpSrc, 0xf0), 0xe0);
        assert_eq!((read.get(Field::TpSrc), read.get(Field::TpDst)), (0xff, 0xff00));
    }

    #[test]
    fn lookup_gets_the_known_bits() {
        let (mut key, mut read) = (key(), FlowMask::default());
        key.write(Field::EthType, 0x800, 0xffff);
        key.recorder(&mut read).read_field(Field::TpSrc);
        key.swap(Field::TpSrc, Field::TpDst);
        read.add(Field::InPort);
        read.add_bits(Field::TpDst, 0xf);
        key.know(&read);
        let before = read.clone();
        key.look_up(&mut read, |_, known| {
            let fields = [Field::EthType, Field::InPort, Field::Reg0, Field::TpDst];
            assert!(fields.iter().all(|&field| known.get(field) == field.all_ones()));
            assert_eq!((known.get(Field::TpSrc), known.get(Field::EthSrc)), (0xf, 0));
        });
        assert_eq!(read, before);
    }

    #[test]
    fn flipped_bits_are_recorded_only_when_read() {
        let (mut key, mut read) = (key(), FlowMask::default());
        let bits = Subfield::new(Field::TpDst, 4, 1);
        bits.into_iter().for_each(|bits| key.flip(bits));
        assert_eq!((key.key().get(Field::TpDst), &read), (80 ^ 0x10, &FlowMask::default()));
        assert_eq!(key.recorder(&mut read).read(Field::TpDst, 0x10), 0);
        assert_eq!(read.get(Field::TpDst), 0x10);
    }
}
