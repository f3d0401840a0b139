//! Fields as files: NumPy's `.npy` in and out, PNG in and out.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A whole field on one rank: `values[row * cols + col]`.
pub struct Field {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f64>,
}

/// Reads a `.png` or `.npy` file; the error is one line that begins with the file's name.
pub fn read(path: &Path) -> Result<Field, String> {
    let field = match extension(path).as_str() {
        "npy" => fs::read(path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| parse_npy(&bytes)),
        "png" => read_png(path),
        _ => Err("neither a .npy nor a .png file".to_owned()),
    };
    let field = field.and_then(
        |field| match field.values.iter().position(|v| !v.is_finite()) {
            None => Ok(field),
            Some(at) => Err(format!(
                "the value in row {}, column {} is not a finite number",
                at / field.cols,
                at % field.cols
            )),
        },
    );
    field.map_err(|error| format!("{}: {error}", path.display()))
}

fn extension(path: &Path) -> String {
    let extension = path.extension().unwrap_or_default();
    extension.to_string_lossy().to_lowercase()
}

/// The format: 6 bytes of magic, version, length of the header, the header as a Python literal,
/// then the values. <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
fn parse_npy(bytes: &[u8]) -> Result<Field, String> {
    let cut = || "the file is cut short".to_owned();
    let rest = bytes
        .strip_prefix(b"\x93NUMPY")
        .ok_or("not a .npy file, whatever its name says")?;
    // Version 1 has a length of 2 bytes, versions 2 and 3 one of 4.
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (u32::from(*a) | u32::from(*b) << 8, rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
        [] | [1..=3, ..] => return Err(cut()),
        [version, ..] => return Err(format!("version {version} of .npy is not known here")),
    };
    let (header, data) = usize::try_from(length)
        .ok()
        .and_then(|length| rest.split_at_checked(length))
        .ok_or_else(cut)?;
    let header = String::from_utf8_lossy(header);

    let dtype = entry(&header, "descr").trim_matches(['\'', '"']);
    if entry(&header, "fortran_order") != "False" {
        return Err("is in Fortran order; save it with numpy.ascontiguousarray".to_owned());
    }
    let shape = entry(&header, "shape");
    let sizes: Option<Vec<usize>> = shape
        .trim_matches(['(', ')'])
        .split(',')
        .map(str::trim)
        .filter(|size| !size.is_empty())
        .map(|size| size.parse().ok())
        .collect();
    let Some([rows, cols]) = sizes
        .as_deref()
        .and_then(|sizes| <[usize; 2]>::try_from(sizes).ok())
    else {
        return Err(format!("shape {shape}, but a field has two dimensions"));
    };

    let width = match dtype {
        "<f8" => 8,
        "<f4" => 4,
        other => {
            return Err(format!(
                "dtype '{other}', but only float64 and float32 ('<f8', '<f4') are read"
            ));
        }
    };
    let expected = rows.checked_mul(cols).and_then(|n| n.checked_mul(width));
    if expected != Some(data.len()) {
        return Err(format!(
            "holds {} bytes of values, which are not {rows} × {cols} of {width}",
            data.len()
        ));
    }
    let values = if width == 8 {
        let (values, _) = data.as_chunks::<8>();
        values.iter().map(|v| f64::from_le_bytes(*v)).collect()
    } else {
        let (values, _) = data.as_chunks::<4>();
        values
            .iter()
            .map(|v| f32::from_le_bytes(*v).into())
            .collect()
    };
    Ok(Field { rows, cols, values })
}

/// The text of `key`'s value in a header such as
/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`; empty if it is not there.
fn entry<'a>(header: &'a str, key: &str) -> &'a str {
    let Some((_, value)) = header.split_once(&format!("'{key}':")) else {
        return "";
    };
    let value = value.trim_start();
    let end = if value.starts_with('(') {
        value.find(')').map(|end| end + 1)
    } else {
        value.find([',', '}'])
    };
    value[..end.unwrap_or(value.len())].trim()
}

/// An image as temperatures between 0 (black) and 1 (white).
fn read_png(path: &Path) -> Result<Field, String> {
    fn text(error: impl Display) -> String {
        error.to_string()
    }
    let file = BufReader::new(File::open(path).map_err(text)?);
    let mut decoder = png::Decoder::new(file);
    // Palettes and fewer than 8 bits become 8 bits; 16 bits stay.
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(text)?;
    let size = reader.output_buffer_size().ok_or("too large")?;
    let mut bytes = vec![0; size];
    let image = reader.next_frame(&mut bytes).map_err(text)?;
    bytes.truncate(image.buffer_size());

    let samples: Vec<f64> = if image.bit_depth == png::BitDepth::Sixteen {
        let (pairs, _) = bytes.as_chunks::<2>();
        pairs
            .iter()
            .map(|v| f64::from(u16::from_be_bytes(*v)) / 65535.0)
            .collect()
    } else {
        bytes.iter().map(|v| f64::from(*v) / 255.0).collect()
    };
    let values = samples
        .chunks_exact(image.color_type.samples())
        .map(|pixel| match *pixel {
            // Luminance of ITU-R BT.709; transparency is ignored.
            [red, green, blue, ..] => 0.2126 * red + 0.7152 * green + 0.0722 * blue,
            [grey, ..] => grey,
            [] => 0.0,
        })
        .collect();
    Ok(Field {
        rows: usize::try_from(image.height).map_err(text)?,
        cols: usize::try_from(image.width).map_err(text)?,
        values,
    })
}

#[derive(Clone, Copy)]
pub enum Format {
    Npy,
    Png,
}

/// A file that will be written.
pub struct Output {
    pub path: PathBuf,
    file: File,
    format: Format,
}

impl Output {
    /// The error begins with the file's name.
    pub fn create(path: &Path, format: Format) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            format,
        })
    }

    /// Begins a field with values in the given range.
    pub fn begin(self, rows: usize, cols: usize, range: [f64; 2]) -> io::Result<Box<dyn Writer>> {
        match self.format {
            Format::Npy => npy(self.file, rows, cols),
            Format::Png => png(self.file, rows, cols, range),
        }
    }
}

/// Writes a field row by row, so that nobody needs room for all of it.
pub trait Writer {
    fn row(&mut self, values: &[f64]) -> io::Result<()>;
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// A `.npy` file, `float64`.
fn npy(file: File, rows: usize, cols: usize) -> io::Result<Box<dyn Writer>> {
    let mut header =
        format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    // The values begin at a multiple of 64 bytes; 10 come before the header, a newline ends it.
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(io::Error::other)?;
    let mut file = BufWriter::new(file);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    Ok(Box::new(Npy(file)))
}

struct Npy(BufWriter<File>);

impl Writer for Npy {
    fn row(&mut self, values: &[f64]) -> io::Result<()> {
        let mut values = values.iter();
        values.try_for_each(|value| self.0.write_all(&value.to_le_bytes()))
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.0.flush()
    }
}

/// A PNG, with the colours from dark to bright for the values from `low` to `high`.
fn png(file: File, rows: usize, cols: usize, [low, high]: [f64; 2]) -> io::Result<Box<dyn Writer>> {
    let size = |n: usize| u32::try_from(n).map_err(io::Error::other);
    let mut encoder = png::Encoder::new(BufWriter::new(file), size(cols)?, size(rows)?);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let stream = encoder.write_header()?.into_stream_writer()?;
    Ok(Box::new(Png {
        stream,
        low,
        width: if high > low { high - low } else { 1.0 },
    }))
}

struct Png {
    stream: png::StreamWriter<'static, BufWriter<File>>,
    low: f64,
    width: f64,
}

impl Writer for Png {
    fn row(&mut self, values: &[f64]) -> io::Result<()> {
        let pixels: Vec<u8> = values
            .iter()
            .flat_map(|value| inferno((value - self.low) / self.width))
            .collect();
        self.stream.write_all(&pixels)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(self.stream.finish()?)
    }
}

/// Matplotlib's colour map "inferno": equal steps of value look equally large, also in grey and
/// to the colour-blind. Between ten of its colours a straight line is near enough.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index from 0 to 9, and colours from 0 to 255"
)]
fn inferno(value: f64) -> [u8; 3] {
    const COLOURS: [[f64; 3]; 10] = [
        [0.0, 0.0, 4.0],
        [27.0, 12.0, 66.0],
        [75.0, 12.0, 107.0],
        [120.0, 28.0, 109.0],
        [165.0, 44.0, 96.0],
        [207.0, 68.0, 70.0],
        [237.0, 105.0, 37.0],
        [251.0, 154.0, 6.0],
        [247.0, 208.0, 60.0],
        [252.0, 255.0, 164.0],
    ];
    let place = value.clamp(0.0, 1.0) * 9.0;
    let index = (place as usize).min(8);
    let (from, to) = (COLOURS[index], COLOURS[index + 1]);
    let part = place - index as f64;
    [0, 1, 2].map(|k| (from[k] + part * (to[k] - from[k])).round() as u8)
}
