//! Converts the generated C structures to bytes and back, without `unsafe`.

/// A number or array of numbers in native byte order.
pub(crate) trait NativeEndian {
    /// Writes the number to `place`, which has exactly its length.
    fn put(&self, place: &mut [u8]);
}

macro_rules! numbers {
    ($($kind:ty)*) => {
        $(impl NativeEndian for $kind {
            fn put(&self, place: &mut [u8]) {
                place.copy_from_slice(&self.to_ne_bytes());
            }
        })*
    };
}

numbers!(u8 u16 u32 u64);

impl<T: NativeEndian, const N: usize> NativeEndian for [T; N] {
    fn put(&self, place: &mut [u8]) {
        for (value, place) in self.iter().zip(place.chunks_exact_mut(size_of::<T>())) {
            value.put(place);
        }
    }
}

/// The bytes of a `$type` with these fields; all others are 0. A value whose type differs from the
/// field's does not compile.
macro_rules! struct_bytes {
    ($type:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        #[allow(unused_mut, reason = "there may be no field")]
        let mut bytes = vec![0_u8; size_of::<$type>()];
        $({
            fn same<T: $crate::struct_bytes::NativeEndian>(value: T, _: impl Fn(&$type) -> T) -> T {
                value
            }
            let value = same($value, |entry: &$type| entry.$field);
            let at = std::mem::offset_of!($type, $field);
            let place = &mut bytes[at..at + size_of_val(&value)];
            $crate::struct_bytes::NativeEndian::put(&value, place);
        })*
        bytes
    }};
}

pub(crate) use struct_bytes;

macro_rules! at {
    ($($name:ident $kind:ty)*) => {
        $(/// The field of a structure at `at`; 0 where the bytes end before.
        pub(crate) fn $name(bytes: &[u8], at: usize) -> $kind {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| <$kind>::from_ne_bytes(*word))
        })*
    };
}

at!(u16_at u16 u32_at u32 u64_at u64);
