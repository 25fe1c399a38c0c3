//! Reading a key so that every bit read is known.

use flow::{Field, FlowKey, FlowMask, PACKET_WORDS, Subfield, low_bits};

/// Gives bits of a key and remembers which.
pub trait Recorder {
    /// The bits of `field` that are one in `mask`, in their places; the others are 0.
    fn read(&mut self, field: Field, mask: u128) -> u128;

    /// Some bits of a field, right aligned.
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

/// The key of a packet on its way through the pipeline. Reading a bit that the packet brought adds it to `read`; reading one
/// that the pipeline has written adds nothing, because it is the same for every packet that came this way: what was
/// copied was read when it was copied.
#[derive(Clone, Debug)]
pub struct RecordedKey {
    key: FlowKey,
    /// Bits whose value follows from the program and from bits that were read.
    written: FlowMask,
    /// Those, and bits that were read: looking at them again costs nothing. A lookup chooses by it what it looks at; that what it
    /// looked at is recorded does not depend on it.
    known: FlowMask,
    /// Fields that have, in bits that are not written, what the packet brought in another one: the field, and that other one.
    moved: Vec<(Field, Field)>,
}

impl RecordedKey {
    /// The key of a packet as it came in. Registers begin as 0 in every packet.
    pub fn new(key: FlowKey) -> Self {
        let mut written = FlowMask::default();
        let [before, after] = PACKET_WORDS;
        written.words_mut()[before.end..after.start].fill(u64::MAX);
        written.add(Field::PktMark);
        Self { key, known: written.clone(), written, moved: Vec::new() }
    }

    /// For reading, with what is read added to `read`.
    #[inline]
    pub fn recorder<'a>(&'a mut self, read: &'a mut FlowMask) -> impl Recorder + use<'a> {
        Reading { key: self, read }
    }

    /// Writes bits of a field that are one in `mask`; `value` must follow from the program and from bits that were read.
    #[inline]
    pub fn write(&mut self, field: Field, value: u128, mask: u128) {
        let kept = self.key.get(field) & !mask;
        self.key.set(field, kept | value & mask);
        self.written.add_bits(field, mask);
        self.known.add_bits(field, mask);
    }

    /// Looks the plain key up. What the lookup depends on, it adds to the mask that it is given, which has what is known
    /// already; from there it comes to `read`.
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

    /// Adds to `read` all that is known and not written, under the names that it had in the packet.
    fn record_moved(&self, read: &mut FlowMask) {
        let mut looked_at = self.known.clone();
        looked_at.words_mut().iter_mut().zip(self.written.words()).for_each(|(a, b)| *a &= !b);
        for &(field, origin) in &self.moved {
            read.add_bits(origin, looked_at.get(field));
            looked_at.set(field, 0);
        }
        read.union(&looked_at);
    }

    /// Takes note that these bits of the packet have been read, for another copy of it.
    pub fn know(&mut self, read: &FlowMask) {
        if self.moved.is_empty() {
            return self.known.union(read);
        }
        let mut read = read.clone();
        let moved: Vec<_> = self.moved.iter().map(|&(at, origin)| (at, read.get(origin))).collect();
        moved.into_iter().for_each(|(field, bits)| read.set(field, bits));
        self.known.union(&read);
    }

    /// Lets two fields of equal width change places. Nothing is read for that: what the packet brought in one is then read
    /// where it has come to, and recorded where it was.
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

    /// Inverts bits. Nothing is read for that.
    pub fn flip(&mut self, bits: Subfield) {
        self.key.set_bits(bits, !self.key.get_bits(bits));
    }

    /// The field in which the packet brought what is in this one.
    #[inline]
    fn origin(&self, field: Field) -> Field {
        let moved = self.moved.iter().find(|(at, _)| *at == field);
        moved.map_or(field, |&(_, origin)| origin)
    }

    /// The plain key, for showing it to people and for comparing it.
    #[inline]
    pub const fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The bits whose value follows from the program and from bits that were read.
    #[inline]
    pub const fn written(&self) -> &FlowMask {
        &self.written
    }
}

struct Reading<'a> {
    key: &'a mut RecordedKey,
    read: &'a mut FlowMask,
}

impl Recorder for Reading<'_> {
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

/// A plain key, with everything that is read added to a mask: for a residual predicate inside a lookup.
#[derive(Debug)]
pub struct PlainRecorder<'a> {
    /// The key.
    pub key: &'a FlowKey,
    /// What was read.
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

    const PORTS: [(Field, u128); 2] = [(Field::TpSrc, 1000), (Field::TpDst, 80)];

    fn key() -> RecordedKey {
        let mut key = FlowKey::default();
        PORTS.iter().for_each(|&(field, value)| key.set(field, value));
        RecordedKey::new(key)
    }

    #[test]
    fn what_has_changed_places_is_recorded_where_it_was() {
        let (mut key, mut read) = (key(), FlowMask::default());
        key.write(Field::TpDst, 0, 0xff);
        key.swap(Field::TpSrc, Field::TpDst);
        assert_eq!(read, FlowMask::default());
        // The lower half has been written.
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
    fn lookup_is_told_what_is_known() {
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
    fn flipping_reads_nothing() {
        let (mut key, mut read) = (key(), FlowMask::default());
        let bits = Subfield::new(Field::TpDst, 4, 1);
        bits.into_iter().for_each(|bits| key.flip(bits));
        assert_eq!((key.key().get(Field::TpDst), &read), (80 ^ 0x10, &FlowMask::default()));
        assert_eq!(key.recorder(&mut read).read(Field::TpDst, 0x10), 0);
        assert_eq!(read.get(Field::TpDst), 0x10);
    }
}
