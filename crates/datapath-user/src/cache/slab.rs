//! A slab: values under stable numbers.

/// A slab. The numbers of removed values are reused.
pub(super) struct Slab<T> {
    values: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a value and returns its number.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.vacant.pop()
            && let Some(place) = self.values.get_mut(number as usize)
        {
            *place = Some(value);
            return number;
        }
        self.values.push(Some(value));
        (self.values.len() - 1) as u32
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.values.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.values.get_mut(number as usize)?.take()?;
        self.vacant.push(number);
        Some(value)
    }

    /// The values from number `from` on, with their numbers.
    pub(super) fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        let values = (0..).zip(&self.values).skip(first as usize);
        values.filter_map(|(number, value)| Some((number, value.as_ref()?)))
    }

    /// All values.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().flatten()
    }

    /// Size of the slab in bytes, without data that the values point to.
    pub(super) fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<T>>() + self.vacant.capacity() * size_of::<u32>()
    }
}
