//! Vectors and matrices.

use crate::array::GlobalArray;
use crate::array::rows::rows;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::{Number, Op};
use crate::threads;
use ndarray::LinalgScalar;

/// Columns of the left matrix that are multiplied at a time.
const PANEL: usize = 256;

/// `f32` and `f64`.
pub trait Real: Number + LinalgScalar + sealed::Sealed {
    /// The square root.
    #[must_use]
    fn sqrt(self) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Real for f32 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl<T: Real, const D: usize> GlobalArray<T, D> {
    /// Every element is multiplied by `factor`.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::local`].
    #[track_caller]
    #[doc(alias = "GA_Scale")]
    pub fn scale(&mut self, factor: T) -> Result<()> {
        self.map_inplace(|x| factor * x)
    }

    /// `factor · x` is added, element by element. The arrays have one shape and any distributions.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::zip_apply`].
    #[track_caller]
    pub fn axpy(&mut self, factor: T, x: &mut Self) -> Result<()> {
        self.zip_apply(x, |y, x| y + factor * x)
    }

    /// The sum of the products of elements with the same index; zero of none. The same bits on all
    /// ranks. The arrays have one shape and any distributions.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::zip_apply`].
    #[track_caller]
    #[doc(alias = "GA_Ddot")]
    pub fn dot(&mut self, other: &mut Self) -> Result<T> {
        let mut moved = self.other_like_this("dot", other)?;
        let other = moved.as_mut().unwrap_or(other);
        let threads = threads::of_this_rank()?;
        let team = self.team();
        let (layout, other_layout) = (self.layout.clone(), other.layout.clone());
        let by_row = layout.has_halo() || other_layout.has_halo();
        let (a, b) = (self.read()?, other.read()?);
        let a_rows = rows(&layout, team.rank(), &a, by_row);
        let b_rows = rows(&other_layout, team.rank(), &b, by_row);
        let sums = threads.pair_pieces(&a_rows, &b_rows, product);
        let sum = sums.into_iter().fold(T::zero(), |all, sum| all + sum);
        let sum = team.all_reduce(sum, Op::Sum)?;
        b.close()?;
        a.close()?;
        Ok(sum)
    }

    /// The square root of the sum of the squares of all elements.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::read`].
    #[track_caller]
    pub fn norm(&mut self) -> Result<T> {
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        let sums = threads.pieces(&mine, |row| product(row, row));
        let sum = sums.into_iter().fold(T::zero(), |all, sum| all + sum);
        let sum = team.all_reduce(sum, Op::Sum)?;
        view.close()?;
        Ok(sum.sqrt())
    }
}

/// In eight sums, which the processor adds at once.
fn product<T: Real>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::zero(); 8];
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_eights.iter().zip(b_eights) {
        for k in 0..8 {
            sums[k] = sums[k] + a[k] * b[k];
        }
    }
    let rest = a_rest
        .iter()
        .zip(b_rest)
        .fold(T::zero(), |sum, (&a, &b)| sum + a * b);
    sums.into_iter().fold(rest, |all, sum| all + sum)
}

impl<T: Real> GlobalArray<T, 2> {
    /// The product of two matrices, a new array in blocks.
    ///
    /// Collective. Each rank reads the rows and columns that its block needs, panel by panel
    /// (SUMMA, van de Geijn and Watts 1997, with reads in place of broadcasts), and multiplies them
    /// with `ndarray`'s kernel on one thread.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks that call if this one's columns are not the other's
    /// rows, or if the teams' ranks differ; else as [`GlobalArray::new`] and [`GlobalArray::get_section`].
    #[track_caller]
    #[doc(alias = "GA_Dgemm")]
    pub fn matmul(&mut self, other: &mut Self) -> Result<Self> {
        self.same_ranks("matmul", other)?;
        let ([rows, inner], [other_rows, columns]) = (self.shape(), other.shape());
        if inner != other_rows {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("matmul of {:?} and {:?}", self.shape(), other.shape()),
            ));
        }
        let team = self.team();
        let mut result = Self::new(&team, [rows, columns])?;
        let mut to = result.local()?;
        if let Some([my_rows, my_columns]) = to.owned().ranges()
            && !my_rows.is_empty()
            && !my_columns.is_empty()
        {
            let mut c = to.array_mut();
            for start in (0..inner).step_by(PANEL) {
                let panel = start..inner.min(start + PANEL);
                let a = self.get_section((my_rows.clone(), panel.clone()))?;
                let b = other.get_section((panel, my_columns.clone()))?;
                ndarray::linalg::general_mat_mul(T::one(), &a, &b, T::one(), &mut c);
            }
        }
        to.close()?;
        Ok(result)
    }
}
