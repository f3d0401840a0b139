//! One element after another, whoever holds them.

use crate::array::GlobalArray;
use crate::element::Element;
use crate::error::Result;
use crate::world::Request;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// Elements that are fetched together.
const BATCH: usize = 1024;
/// Batches that are under way while one is given out.
const AHEAD: usize = 2;

/// The elements of a range in their order: see [`GlobalArray::iter`].
pub struct Iter<'a, T: Element> {
    array: &'a GlobalArray<T>,
    /// What has not been asked for.
    rest: Range<usize>,
    batches: VecDeque<Request<'a, Vec<T>>>,
    values: std::vec::IntoIter<T>,
    /// Elements not given out yet.
    left: usize,
}

impl<T: Element> GlobalArray<T> {
    /// The elements of `range` one after another, of any ranks, fetched ahead in batches of 1,024:
    /// each is read some time before it is given out. After an error there are no more.
    ///
    /// One-sided; waits for elements that have not come.
    ///
    /// ```no_run
    /// # fn f(array: &pgas::GlobalArray<u64>) -> pgas::Result<()> {
    /// let mut sum = 0;
    /// for value in array.iter(0..array.len())? {
    ///     sum += value?;
    /// }
    /// # let _ = sum; Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GlobalArray::get_range`].
    pub fn iter(&self, range: Range<usize>) -> Result<Iter<'_, T>> {
        self.slice("iter", range.start, range.len())?;
        let mut iter = Iter {
            array: self,
            left: range.len(),
            rest: range,
            batches: VecDeque::new(),
            values: Vec::new().into_iter(),
        };
        iter.ask()?;
        Ok(iter)
    }
}

impl<T: Element> Iter<'_, T> {
    fn ask(&mut self) -> Result<()> {
        while self.batches.len() < AHEAD && !self.rest.is_empty() {
            let end = self.rest.end.min(self.rest.start + BATCH);
            let batch = self.array.get_range_async(self.rest.start..end)?;
            self.batches.push_back(batch);
            self.rest.start = end;
        }
        Ok(())
    }

    #[cold]
    fn next_batch(&mut self) -> Option<Result<T>> {
        let values = self.batches.pop_front()?.wait();
        let values = self.ask().and(values);
        match values {
            Ok(values) => {
                self.values = values.into_iter();
                self.left = self.left.saturating_sub(1);
                self.values.next().map(Ok)
            }
            Err(error) => {
                (self.left, self.rest) = (0, 0..0);
                self.batches.clear();
                Some(Err(error))
            }
        }
    }
}

impl<T: Element> Iterator for Iter<'_, T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        match self.values.next() {
            Some(value) => {
                self.left -= 1;
                Some(Ok(value))
            }
            None => self.next_batch(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error ends it early.
        (0, Some(self.left))
    }
}

impl<T: Element> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
