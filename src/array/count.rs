//! What `ucxrun --stats` counts: operations on elements, by owner.

use super::races::Access;
use super::{ArrayIndex, GlobalArray};
use crate::dist::Slice;
use crate::element::Element;
use crate::error::Result;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Counts an operation for each of these elements.
    pub(super) fn count_all<I: ArrayIndex<D>>(
        &self,
        access: Access,
        indices: impl Iterator<Item = I>,
    ) -> Result<()> {
        let core = self.core_of();
        if core.counts() {
            for index in indices {
                let (rank, _) = self.locate(access.call, index.into_array())?;
                core.count(rank, 1, size_of::<T>());
            }
        }
        Ok(())
    }

    /// Counts an operation for each rank that has elements of a section.
    pub(super) fn count_section(&self, slices: [Slice; D]) {
        let core = self.core_of();
        if core.counts() {
            for patch in self.layout.patches(slices) {
                core.count(patch.rank, 1, patch.len() * size_of::<T>());
            }
        }
    }
}
