//! `Ragged`: rows of different lengths, one after another.

use std::ops::Index;

/// Rows of different lengths in one vector: what ranks give each other where lengths differ, in
/// place of counts and displacements. Row `k` is rank `k`'s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ragged<T> {
    values: Vec<T>,
    /// Where each row ends.
    ends: Vec<usize>,
}

impl<T> Default for Ragged<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            ends: Vec::new(),
        }
    }
}

impl<T> Ragged<T> {
    /// No rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub fn push(&mut self, row: &[T])
    where
        T: Clone,
    {
        self.values.extend_from_slice(row);
        self.ends.push(self.values.len());
    }

    /// Adds a row.
    pub(super) fn push_vec(&mut self, row: Vec<T>) {
        self.values.extend(row);
        self.ends.push(self.values.len());
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Row `k`, if there is one.
    #[must_use]
    pub fn get(&self, k: usize) -> Option<&[T]> {
        let end = *self.ends.get(k)?;
        let start = match k {
            0 => 0,
            _ => self.ends[k - 1],
        };
        Some(&self.values[start..end])
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|k| &self[k])
    }

    /// All values, row after row.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, row after row.
    #[must_use]
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

impl<T> Index<usize> for Ragged<T> {
    type Output = [T];

    fn index(&self, k: usize) -> &[T] {
        match self.get(k) {
            Some(row) => row,
            None => panic!("row {k} of {}", self.len()),
        }
    }
}

impl<T, R: AsRef<[T]>> FromIterator<R> for Ragged<T>
where
    T: Clone,
{
    fn from_iter<I: IntoIterator<Item = R>>(rows: I) -> Self {
        let mut this = Self::new();
        for row in rows {
            this.push(row.as_ref());
        }
        this
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length() {
        let rows: Ragged<u8> = [vec![1, 2], vec![], vec![3]].iter().collect();
        assert_eq!((rows.len(), rows.values().len()), (3, 3));
        assert_eq!(
            (&rows[0], &rows[1], &rows[2]),
            (&[1, 2][..], &[][..], &[3][..])
        );
        assert_eq!(rows.get(3), None);
        assert!(rows.iter().map(<[u8]>::len).eq([2, 0, 1]));
        assert!(Ragged::<u8>::new().is_empty());
    }
}
