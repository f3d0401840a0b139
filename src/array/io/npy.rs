//! numpy's files. The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
//!
//! The header is read and written here: crates for it read and write whole files, from one end to
//! the other.

use super::{Order, Transfer, agree, failed};
use crate::array::GlobalArray;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::world::Team;
use half::f16;
use num_complex::Complex;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Types that numpy has, too: integers of 1 to 8 bytes, `f16`, `f32`, `f64`, complex numbers of the last
/// two, and `bool`.
pub trait Numpy: Element + sealed::Numpy {}

pub(crate) mod sealed {
    pub trait Numpy {
        /// As numpy calls it, without the order of bytes.
        const NAME: &'static str;
        /// Bytes of what has an order of bytes.
        const PART: usize;
    }
}

macro_rules! numpy {
    ($($type:ty: $name:literal of $part:ty)*) => {$(
        impl Numpy for $type {}
        impl sealed::Numpy for $type {
            const NAME: &'static str = $name;
            const PART: usize = size_of::<$part>();
        }
    )*};
}
numpy! {
    i8: "i1" of i8
    u8: "u1" of u8
    i16: "i2" of i16
    u16: "u2" of u16
    i32: "i4" of i32
    u32: "u4" of u32
    i64: "i8" of i64
    u64: "u8" of u64
    f16: "f2" of f16
    f32: "f4" of f32
    f64: "f8" of f64
    bool: "b1" of bool
    Complex<f32>: "c8" of f32
    Complex<f64>: "c16" of f64
}

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header: of a structured type of many fields, which is refused then.
const LONGEST: usize = 1 << 20;

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// The type with its order of bytes: `<f8`.
    descr: String,
    fortran: bool,
    pub(super) shape: Vec<usize>,
    /// Where the elements begin.
    pub(super) data: u64,
}

impl<T: Numpy, const D: usize> GlobalArray<T, D> {
    /// Writes the array to a `.npy` file, which `numpy.load` reads, in C order. What was at `path` is
    /// replaced when all is written.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// use pgas::GlobalArray;
    /// let mut plane = GlobalArray::<f64, 2>::from_fn(world, [1000, 500], |[i, j]| (i * j) as f64)?;
    /// plane.save_npy("plane.npy")?;
    /// let again = GlobalArray::<f64, 2>::load_npy(world, "plane.npy")?;
    /// # let _ = again; Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GlobalArray::save_raw`].
    #[track_caller]
    pub fn save_npy(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.save_npy_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::save_npy`], in an order of elements and with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::save_raw`].
    #[track_caller]
    pub fn save_npy_with(&mut self, path: impl AsRef<Path>, transfer: &Transfer) -> Result<()> {
        let head = header::<T>(&self.shape(), transfer.order);
        self.save_elements(path.as_ref(), &head, transfer)
    }

    /// The array that is in a `.npy` file, in blocks. Both orders of elements are read, and numbers in
    /// either order of bytes.
    ///
    /// Collective.
    ///
    /// # Errors
    /// On all ranks: [`ErrorKind::Io`] if one cannot read, or if it is no such file or too short;
    /// [`ErrorKind::InvalidArgument`] if it has another type or number of dimensions, with both; else
    /// as [`GlobalArray::new`] and [`GlobalArray::load_raw`].
    #[track_caller]
    pub fn load_npy(world: &Team, path: impl AsRef<Path>) -> Result<Self> {
        Self::load_npy_with(world, path, &Transfer::new())
    }

    /// As [`GlobalArray::load_npy`], with a word on the progress. The file says its order itself.
    ///
    /// # Errors
    /// As [`GlobalArray::load_npy`].
    #[track_caller]
    pub fn load_npy_with(
        world: &Team,
        path: impl AsRef<Path>,
        transfer: &Transfer,
    ) -> Result<Self> {
        let path = path.as_ref();
        let header = read_header::<T>(world, path)?;
        let shape: [usize; D] = header.shape.as_slice().try_into().map_err(|_| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} has an array of {} dimensions, not {D}",
                    path.display(),
                    header.shape.len()
                ),
            )
        })?;
        let mut array: Self = Self::builder(world, shape).build()?;
        array.load_from(path, &header, transfer)?;
        Ok(array)
    }

    /// Fills the array, which may have any distribution, with the one in a `.npy` file, which has its
    /// shape. Else as [`GlobalArray::load_npy`].
    ///
    /// # Errors
    /// As [`GlobalArray::load_npy`]; [`ErrorKind::InvalidArgument`] on all ranks if the shapes differ.
    #[track_caller]
    pub fn read_npy(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.read_npy_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::read_npy`], with a word on the progress. The file says its order itself.
    ///
    /// # Errors
    /// As [`GlobalArray::read_npy`].
    #[track_caller]
    pub fn read_npy_with(&mut self, path: impl AsRef<Path>, transfer: &Transfer) -> Result<()> {
        let path = path.as_ref();
        let header = read_header::<T>(&self.team(), path)?;
        if header.shape != self.shape() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} has an array of {:?}, not {:?}",
                    path.display(),
                    header.shape,
                    self.shape()
                ),
            ));
        }
        self.load_from(path, &header, transfer)
    }

    #[track_caller]
    fn load_from(&mut self, path: &Path, header: &Header, transfer: &Transfer) -> Result<()> {
        let order = match header.fortran {
            true => Order::Fortran,
            false => Order::C,
        };
        let transfer = transfer.clone().order(order);
        let swap = |bytes: &mut [u8]| {
            if is_swapped(&header.descr) {
                bytes.chunks_exact_mut(T::PART).for_each(<[u8]>::reverse);
            }
        };
        self.load_elements(path, header.data, &transfer, &swap)
    }
}

/// Whether the numbers' bytes are in the order of another processor.
fn is_swapped(descr: &str) -> bool {
    let swapped = if cfg!(target_endian = "little") {
        '>'
    } else {
        '<'
    };
    descr.starts_with(swapped)
}

/// A file's header, on all ranks, if it is of an array of `T`s. Collective.
#[track_caller]
fn read_header<T: Numpy>(team: &Team, path: &Path) -> Result<Header> {
    let header = match team.rank() {
        0 => read(path).and_then(|header| {
            let (order, name) = header.descr.split_at_checked(1).unwrap_or_default();
            let other = |what: String| {
                let text = format!("{} has elements of {what}", path.display());
                Err(Error::new(ErrorKind::InvalidArgument, text))
            };
            let (descr, right) = (&header.descr, descr::<T>());
            if name != T::NAME {
                let wanted = std::any::type_name::<T>();
                return other(format!("type {descr:?}, not {wanted}, which is {right:?}"));
            }
            // Of one byte there is no order, so any is right.
            if !matches!(order, "<" | ">" | "=") && (order != "|" || T::PART > 1) {
                return other(format!(
                    "type {descr:?}, whose order of bytes is none of <, > and =: it could be {right:?}"
                ));
            }
            Ok(Some(header))
        }),
        _ => Ok(None),
    };
    let header = agree(team, header)?;
    team.broadcast_obj(0, header.as_ref())
}

fn read(path: &Path) -> Result<Header> {
    let file = File::open(path).map_err(|error| failed("reading", path, &error))?;
    let mut start = Vec::new();
    // Enough for any length of its header, if it says one.
    let mut file = file.take(LONGEST as u64);
    file.read_to_end(&mut start)
        .map_err(|error| failed("reading", path, &error))?;
    parse(&start).map_err(|reason| {
        Error::new(
            ErrorKind::Io,
            format!(
                "{} is no .npy file that can be read: {reason}",
                path.display()
            ),
        )
    })
}

fn descr<T: Numpy>() -> String {
    let order = match size_of::<T>() {
        1 => '|',
        _ if cfg!(target_endian = "little") => '<',
        _ => '>',
    };
    format!("{order}{}", T::NAME)
}

pub(super) fn header<T: Numpy>(shape: &[usize], order: Order) -> Vec<u8> {
    let numbers: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let fortran = match order {
        Order::C => "False",
        Order::Fortran => "True",
    };
    let mut text = format!(
        "{{'descr': '{}', 'fortran_order': {fortran}, 'shape': ({}{comma}), }}",
        descr::<T>(),
        numbers.join(", ")
    );
    // Elements begin at a multiple of 64 bytes, after a new line.
    let head = MAGIC.len() + 4;
    while !(head + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    // Six dimensions are far from 64 KiB.
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The header at the beginning of a file's bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, &'static str> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or("it does not begin as one")?;
    let (version, rest) = rest.split_at_checked(2).ok_or("it is cut short")?;
    let (len, text) = match version[0] {
        1 => {
            let (len, text) = rest.split_first_chunk::<2>().ok_or("it is cut short")?;
            (usize::from(u16::from_le_bytes(*len)), text)
        }
        2 | 3 => {
            let (len, text) = rest.split_first_chunk::<4>().ok_or("it is cut short")?;
            (
                usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX),
                text,
            )
        }
        _ => return Err("its version is not 1, 2 or 3"),
    };
    let data = (bytes.len() - text.len()).saturating_add(len) as u64;
    let text = text
        .get(..len)
        .ok_or("its header is cut short or too long")?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is no text")?;
    let mut words = Words(text);
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    words.expect('{')?;
    while !words.take('}') {
        let key = words.string()?;
        words.expect(':')?;
        match key {
            "descr" => descr = Some(words.string()?.to_owned()),
            "fortran_order" => fortran = Some(words.truth()?),
            "shape" => shape = Some(words.tuple()?),
            _ => return Err("its header has a key that is not known"),
        }
        if !words.take(',') {
            words.expect('}')?;
            break;
        }
    }
    if !words.0.trim().is_empty() {
        return Err("its header goes on after its end");
    }
    let missing = "its header lacks a key";
    let shape: Vec<usize> = shape.ok_or(missing)?;
    let len = shape
        .iter()
        .try_fold(8_usize, |all, &len| all.checked_mul(len.max(1)));
    len.ok_or("its shape is too large")?;
    Ok(Header {
        descr: descr.ok_or(missing)?,
        fortran: fortran.ok_or(missing)?,
        shape,
        data,
    })
}

/// What is left of a header: a Python literal.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn take(&mut self, mark: char) -> bool {
        match self.0.trim_start().strip_prefix(mark) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, mark: char) -> Result<(), &'static str> {
        match self.take(mark) {
            true => Ok(()),
            false => Err("its header is no dictionary of strings, truth values and numbers"),
        }
    }

    fn string(&mut self) -> Result<&'a str, &'static str> {
        let quote = if self.take('\'') { '\'' } else { '"' };
        if quote == '"' && !self.take('"') {
            return Err("its elements are records, or a key is no string");
        }
        let (text, rest) = self.0.split_once(quote).ok_or("a string does not end")?;
        self.0 = rest;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, &'static str> {
        let text = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = text.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("fortran_order is neither True nor False")
    }

    fn tuple(&mut self) -> Result<Vec<usize>, &'static str> {
        self.expect('(')?;
        let mut numbers = Vec::new();
        while !self.take(')') {
            let text = self.0.trim_start();
            let end = text
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len());
            let (number, rest) = text.split_at(end);
            numbers.push(
                number
                    .parse()
                    .map_err(|_| "its shape is no tuple of numbers")?,
            );
            // Python 2 wrote long numbers so.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_read_as_written() {
        for (shape, order) in [
            (&[][..], Order::C),
            (&[0], Order::C),
            (&[5], Order::Fortran),
            (&[3, 4], Order::C),
            (&[1, 2, 3, 4, 5, 6], Order::Fortran),
        ] {
            let bytes = header::<f64>(shape, order);
            assert!(bytes.len().is_multiple_of(64));
            let right = Header {
                descr: descr::<f64>(),
                fortran: order == Order::Fortran,
                shape: shape.to_vec(),
                data: bytes.len() as u64,
            };
            assert_eq!(parse(&bytes), Ok(right));
        }
    }

    #[test]
    fn other_writers_headers() {
        let with = |text: &str| {
            let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            parse(&bytes)
        };
        let right = with("{\"shape\":(10L,), 'fortran_order':False,'descr':'>i4'}\n").unwrap();
        assert_eq!((right.shape, right.descr.as_str()), (vec![10], ">i4"));
        for wrong in [
            "",
            "{}",
            "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f8', 'fortran_order': 0, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (1 2)}",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (-1,)}",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (1,)} more",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (99999999999, 99999999999)}",
        ] {
            assert!(with(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn damaged_headers_are_refused_or_make_sense(
            at in 0_usize..200, byte: u8, cut in 0_usize..200
        ) {
            let mut bytes = header::<u16>(&[12, 34], Order::C);
            let len = bytes.len();
            bytes[at % len] = byte;
            // Whole half of the time.
            bytes.truncate(len - if cut < 100 { 0 } else { cut % len });
            if let Ok(header) = parse(&bytes) {
                prop_assert!(header.data <= len as u64);
            }
        }
    }
}
