//! Reading a key so that every bit read is known.

use flow::{Field, FlowKey, FlowMask, Subfield, low_bits};

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
}

impl RecordedKey {
    /// The key of a packet as it came in. Registers begin as 0 in every packet.
    pub fn new(key: FlowKey) -> Self {
        let mut written = FlowMask::default();
        for &field in Field::ALL.iter().filter(|field| field.is_register()) {
            written.add(field);
        }
        Self { key, written }
    }

    /// For reading, with what is read added to `read`.
    #[inline]
    pub fn recorder<'a>(&'a self, read: &'a mut FlowMask) -> impl Recorder + use<'a> {
        Reading { key: self, read }
    }

    /// Writes bits of a field that are one in `mask`; `value` must follow from the program and from bits that were read.
    #[inline]
    pub fn write(&mut self, field: Field, value: u128, mask: u128) {
        let kept = self.key.get(field) & !mask;
        self.key.set(field, kept | value & mask);
        self.written.add_bits(field, mask);
    }

    /// Adds to `read` what a lookup that was given [`RecordedKey::key`] says it depended on.
    #[inline]
    pub fn record(&self, looked_at: &FlowMask, read: &mut FlowMask) {
        let written = self.written.words();
        for ((read, looked_at), written) in
            read.words_mut().iter_mut().zip(looked_at.words()).zip(written)
        {
            *read |= looked_at & !written;
        }
    }

    /// The plain key, for a lookup that reports what it read (see [`RecordedKey::record`]) and for showing it to people.
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
    key: &'a RecordedKey,
    read: &'a mut FlowMask,
}

impl Recorder for Reading<'_> {
    #[inline]
    fn read(&mut self, field: Field, mask: u128) -> u128 {
        let unknown = mask & !self.key.written.get(field);
        if unknown != 0 {
            self.read.add_bits(field, unknown);
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
