//! Elements on their way to where another distribution, or another order, wants them.

use crate::array::races::Access;
use crate::array::{GlobalArray, LocalView};
use crate::dist::{Dist, Slice};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use ndarray::{Array, ArrayView2, ArrayViewMut2, Dim, Dimension, IntoDimension, Ix};
use std::panic::Location;
use std::sync::Arc;

/// Bytes of elements that are moved at a time.
const PIECE: usize = 8 << 20;
/// Edge of the squares in which a matrix is transposed: two of them fit a first-level cache.
const SQUARE: usize = 32;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Refuses another shape than this one's, and an array of other ranks, on all ranks alike.
    pub(super) fn same_shape<U: Element>(
        &self,
        call: &str,
        other: &GlobalArray<U, D>,
    ) -> Result<()> {
        self.same_ranks(call, other)?;
        if self.shape() == other.shape() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{call} of arrays of {:?} and {:?}",
                self.shape(),
                other.shape()
            ),
        ))
    }

    /// Refuses an array of a team that has not the same ranks, in whatever order: a rank that is in
    /// one team only has nothing to call with, and the others would wait for it.
    pub(super) fn same_ranks<U: Element, const E: usize>(
        &self,
        call: &str,
        other: &GlobalArray<U, E>,
    ) -> Result<()> {
        if self.is_of_team_of(other) {
            return Ok(());
        }
        let (mut mine, mut others) = (self.world_ranks(), other.world_ranks());
        mine.sort_unstable();
        others.sort_unstable();
        if mine == others {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{call} of arrays of teams that have not the same ranks: {} and {} ranks",
                mine.len(),
                others.len()
            ),
        ))
    }

    /// Whether each process holds the same indices of both arrays, at the same places among them: a
    /// rank is another process where teams number theirs differently.
    fn has_parts_of<U: Element>(&self, other: &GlobalArray<U, D>) -> bool {
        self.layout.has_parts_of(&other.layout)
            && (self.is_of_team_of(other) || self.world_ranks() == other.world_ranks())
    }

    fn is_of_team_of<U: Element, const E: usize>(&self, other: &GlobalArray<U, E>) -> bool {
        Arc::ptr_eq(self.window.core(), other.window.core())
    }

    /// The numbers in the world of its team's ranks, in their order.
    fn world_ranks(&self) -> Vec<usize> {
        let core = self.window.core();
        let world_rank = |rank| core.peers().world_rank(rank);
        (0..core.size).map(world_rank).collect()
    }

    /// `other` distributed as this array; None if it is.
    #[track_caller]
    pub(super) fn other_like_this<U: Element>(
        &self,
        call: &str,
        other: &mut GlobalArray<U, D>,
    ) -> Result<Option<GlobalArray<U, D>>> {
        self.same_shape(call, other)?;
        if self.has_parts_of(other) {
            return Ok(None);
        }
        let core = self.window.core();
        let open = [crate::Boundary::Open; D];
        let mut moved = GlobalArray::allocate(core, self.layout.clone(), open, false, None)?;
        other.lend_values(&moved)?;
        moved.copy_elements(other)?;
        Ok(Some(moved))
    }

    /// Gives a new array values, if its zero bytes are none: any one of this array's.
    fn lend_values<const E: usize>(&self, new: &GlobalArray<T, E>) -> Result<()> {
        if element::zeroed::<T>().is_err() && !self.is_empty() {
            let value = self.get([0; D])?;
            new.fill_own(|_| value);
        }
        Ok(())
    }

    /// Every element becomes that of `other` at its index. The arrays have one shape and any
    /// distributions. Their teams have the same ranks, in any order.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks that call if the shapes or the teams' ranks differ;
    /// else as [`GlobalArray::local`] and [`GlobalArray::get_section`].
    #[track_caller]
    pub fn copy_from(&mut self, other: &mut Self) -> Result<()> {
        self.same_shape("copy_from", other)?;
        self.copy_elements(other)
    }

    /// The same, of arrays known to have one shape. `other` is only read.
    #[track_caller]
    fn copy_elements(&mut self, other: &mut Self) -> Result<()> {
        if self.has_parts_of(other) {
            return self.in_place_with(other, |to, from| to.copy_from_slice(from));
        }
        let site = Location::caller();
        let (rank, layout) = (self.rank(), self.layout.clone());
        // A barrier: what was written to `other` is in its place.
        let mut to = self.local()?;
        other.mode.check_open("copy_from")?;
        let most = (PIECE / size_of::<T>()).max(1);
        for slices in layout.boxes(rank, most) {
            other.note_section(Access::read("copy_from", site), slices)?;
            let Some(patch) = layout.patches(slices).next() else {
                continue;
            };
            let mut rows = patch.rows();
            if let (Some(row), None) = (rows.next(), rows.next())
                && row.is_dense()
            {
                other.load_section_into(slices, &mut to[row.offset..][..row.count])?;
                continue;
            }
            let values = other.load_section(slices)?;
            for row in patch.rows() {
                if row.is_dense() {
                    let from = &values[row.at..][..row.count];
                    to[row.offset..][..row.count].copy_from_slice(from);
                } else {
                    (0..row.count).for_each(|k| to[row.offset_of(k)] = values[row.at_of(k)]);
                }
            }
        }
        // Nobody writes to `other` before all have read it.
        to.close()
    }

    /// A new array with the same elements in another distribution, on a grid that is chosen.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`Builder::build`](crate::Builder::build).
    #[track_caller]
    pub fn redistribute(&mut self, dists: [Dist; D]) -> Result<Self> {
        let team = self.team();
        let builder: crate::Builder<'_, T, D> = Self::builder(&team, self.shape());
        let mut moved = builder.dist(dists).allocate()?;
        self.lend_values(&moved)?;
        moved.copy_elements(self)?;
        Ok(moved)
    }
}

impl<T: Element, const D: usize> GlobalArray<T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// All elements, on every rank.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end. Each rank
    /// needs room for the whole array.
    ///
    /// # Errors
    /// As [`GlobalArray::get_section`] and [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn to_local(&mut self) -> Result<Array<T, Dim<[Ix; D]>>> {
        let view = self.read()?;
        let all = view.whole()?;
        view.close()?;
        Ok(all)
    }
}

impl<T: Element, const D: usize> crate::ReadView<'_, T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// All elements of the array. One-sided.
    fn whole(&self) -> Result<Array<T, Dim<[Ix; D]>>> {
        let slices = self.array.shape().map(Slice::whole);
        let values = self.array.load_section(slices)?;
        Array::from_shape_vec(self.array.shape(), values)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
    }
}

impl<T: Element> GlobalArray<T, 2> {
    /// A new array with element `[j, i]` of this one at `[i, j]`, distributed in blocks.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn transpose(&mut self) -> Result<Self> {
        let team = self.team();
        let [rows, columns] = self.shape();
        let mut result = Self::builder(&team, [columns, rows]).allocate()?;
        self.lend_values(&result)?;
        let mut to: LocalView<'_, T, 2> = result.local()?;
        if let Some([from_columns, from_rows]) = to.owned().ranges() {
            let block = self.get_section((from_rows, from_columns))?;
            transpose_block(block.view(), to.array_mut());
        }
        to.close()?;
        Ok(result)
    }
}

/// Square by square, so that neither side's rows leave the cache before they are used up.
fn transpose_block<T: Copy>(from: ArrayView2<'_, T>, mut to: ArrayViewMut2<'_, T>) {
    let (rows, columns) = to.dim();
    for i in (0..rows).step_by(SQUARE) {
        for j in (0..columns).step_by(SQUARE) {
            for i in i..rows.min(i + SQUARE) {
                for j in j..columns.min(j + SQUARE) {
                    to[[i, j]] = from[[j, i]];
                }
            }
        }
    }
}
