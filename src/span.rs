//! Sections: which indices of each dimension an operation is about.

use crate::dist::Slice;
use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

/// Indices of one dimension, regularly spaced: a Rust range, a single index, or a range with a
/// step, made by [`span`].
///
/// ```
/// use pgas::span;
///
/// let backwards = span(..).step_by(-1);
/// let every_seventh = span(3..101).step_by(7);
/// # let _ = (backwards, every_seventh);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    start: Bound<usize>,
    end: Bound<usize>,
    step: isize,
}

/// The indices of `range`, to be given a step: see [`Span::step_by`].
pub fn span(range: impl RangeBounds<usize>) -> Span {
    Span {
        start: range.start_bound().cloned(),
        end: range.end_bound().cloned(),
        step: 1,
    }
}

impl Span {
    /// Every `step`-th index of the range, from its first on; for a negative `step` from its last
    /// on, downwards (as ndarray's and numpy's slices). Whoever uses a step of 0 gets
    /// [`ErrorKind::InvalidArgument`].
    #[must_use]
    pub fn step_by(self, step: isize) -> Self {
        Self { step, ..self }
    }

    /// The indices, in a dimension of `len`.
    fn slice(self, call: &str, d: usize, len: usize) -> Result<Slice> {
        let start = match self.start {
            Bound::Included(start) => Some(start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match self.end {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(end),
            Bound::Unbounded => Some(len),
        };
        if self.step == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call}: a step of 0 in dimension {d}"),
            ));
        }
        // A range that ends before it starts is empty, as everywhere in Rust, but its ends are
        // indices nevertheless.
        let (Some(start), Some(end)) = (start, end) else {
            return Err(self.outside(call, d, len));
        };
        if start > len || end > len {
            return Err(self.outside(call, d, len));
        }
        let count = end.saturating_sub(start).div_ceil(self.step.unsigned_abs());
        Ok(Slice {
            start: match count {
                0 => 0,
                _ if self.step > 0 => start,
                _ => end - 1,
            },
            // That of a single index could be anything.
            step: if count > 1 { self.step } else { 1 },
            count,
        })
    }

    #[cold]
    fn outside(self, call: &str, d: usize, len: usize) -> Error {
        Error::new(
            ErrorKind::OutOfBounds,
            format!("{call} of {self}: dimension {d} has {len} indices"),
        )
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            Bound::Included(start) => write!(f, "{start}")?,
            Bound::Excluded(before) => write!(f, "({before})")?,
            Bound::Unbounded => {}
        }
        match self.end {
            Bound::Included(last) => write!(f, "..={last}")?,
            Bound::Excluded(end) => write!(f, "..{end}")?,
            Bound::Unbounded => write!(f, "..")?,
        }
        match self.step {
            1 => Ok(()),
            step => write!(f, " step {step}"),
        }
    }
}

impl From<usize> for Span {
    /// The one index; the dimension stays, with one index.
    fn from(index: usize) -> Self {
        span(index..=index)
    }
}

/// A part of an array of `D` dimensions: a [`Span`] or what converts to one for each, as an array
/// or a tuple; in one dimension without either.
///
/// ```no_run
/// # fn f(array: &pgas::GlobalArray<f64, 2>, line: &pgas::GlobalArray<f64>) -> pgas::Result<()> {
/// use pgas::span;
///
/// let column = array.get_section((.., 4))?;
/// let corner = array.get_section([0..10, 0..20])?;
/// let odd_rows = array.get_section((span(1..).step_by(2), ..))?;
/// let backwards = line.get_section(span(..).step_by(-1))?;
/// # let _ = (column, corner, odd_rows, backwards); Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no section of an array of {D} dimensions",
    note = "a section is a tuple or an array of {D} ranges, numbers or `Span`s"
)]
pub trait Section<const D: usize> {
    /// The indices of each dimension.
    fn spans(self) -> [Span; D];
}

impl<S: Into<Span>, const D: usize> Section<D> for [S; D] {
    fn spans(self) -> [Span; D] {
        self.map(Into::into)
    }
}

impl Section<1> for Span {
    fn spans(self) -> [Span; 1] {
        [self]
    }
}

macro_rules! ranges {
    ($($range:ty),*) => {$(
        impl From<$range> for Span {
            fn from(range: $range) -> Self {
                span(range)
            }
        }

        impl Section<1> for $range {
            fn spans(self) -> [Span; 1] {
                [self.into()]
            }
        }
    )*};
}
ranges!(
    Range<usize>,
    RangeFrom<usize>,
    RangeFull,
    RangeInclusive<usize>,
    RangeTo<usize>,
    RangeToInclusive<usize>
);

macro_rules! tuple {
    ($d:literal: $($name:ident)*) => {
        impl<$($name: Into<Span>),*> Section<$d> for ($($name,)*) {
            fn spans(self) -> [Span; $d] {
                #[expect(non_snake_case, reason = "one name for a type and its value")]
                let ($($name,)*) = self;
                [$($name.into()),*]
            }
        }
    };
}
tuple!(1: A);
tuple!(2: A B);
tuple!(3: A B C);
tuple!(4: A B C E);
tuple!(5: A B C E F);
tuple!(6: A B C E F G);

/// The indices that `spans` are in an array of this shape.
///
/// # Errors
/// [`ErrorKind::OutOfBounds`]; [`ErrorKind::InvalidArgument`] for a step of 0.
pub(crate) fn resolve<const D: usize>(
    call: &str,
    spans: [Span; D],
    shape: [usize; D],
) -> Result<[Slice; D]> {
    let mut slices = [Slice {
        start: 0,
        step: 1,
        count: 0,
    }; D];
    for d in 0..D {
        slices[d] = spans[d].slice(call, d, shape[d])?;
    }
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(span: impl Into<Span>, len: usize) -> Vec<usize> {
        let slice = span.into().slice("test", 0, len).unwrap();
        (0..slice.count)
            .map(|k| {
                slice
                    .start
                    .wrapping_add_signed(slice.step * k.cast_signed())
            })
            .collect()
    }

    #[test]
    fn steps_go_as_in_numpy() {
        assert_eq!(indices(2..5, 10), [2, 3, 4]);
        assert_eq!(indices(span(3..12).step_by(4), 12), [3, 7, 11]);
        assert_eq!(indices(span(..).step_by(-1), 3), [2, 1, 0]);
        assert_eq!(indices(span(..=99).step_by(-40), 101), [99, 59, 19]);
        assert_eq!(indices(7, 10), [7]);
        assert!(indices(4..4, 10).is_empty());
        #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
        let reversed = 5..4;
        assert!(indices(reversed, 10).is_empty());
    }

    #[test]
    fn what_is_outside_is_an_error() {
        let kind = |span: Span| span.slice("test", 0, 10).unwrap_err().kind();
        assert_eq!(kind(span(5..11)), ErrorKind::OutOfBounds);
        assert_eq!(kind(span(11..)), ErrorKind::OutOfBounds);
        assert_eq!(kind(span(..=usize::MAX)), ErrorKind::OutOfBounds);
        assert_eq!(kind(span(..).step_by(0)), ErrorKind::InvalidArgument);
        assert_eq!(kind(10.into()), ErrorKind::OutOfBounds);
    }
}
