//! Pictures in PNG files, row by row.

use crate::Pixel;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

/// A picture that is being read.
pub struct Input {
    reader: png::Reader<BufReader<File>>,
    pub shape: [usize; 2],
}

impl Input {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut decoder = png::Decoder::new(BufReader::new(File::open(path)?));
        // All that there is becomes 8 bits.
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
        let reader = decoder.read_info()?;
        let info = reader.info();
        if info.interlaced {
            return Err(io::Error::other("interlaced pictures cannot be read"));
        }
        let size = |n: u32| usize::try_from(n).map_err(io::Error::other);
        let shape = [size(info.height)?, size(info.width)?];
        Ok(Self { reader, shape })
    }

    /// The next row; transparency is ignored.
    pub fn row(&mut self) -> io::Result<Vec<Pixel>> {
        let samples = self.reader.output_color_type().0.samples();
        let row = self.reader.next_row()?;
        let row = row.ok_or(io::ErrorKind::UnexpectedEof)?;
        let pixels = row.data().chunks_exact(samples).map(|pixel| match *pixel {
            [red, green, blue, ..] => [red, green, blue],
            [grey, ..] => [grey; 3],
            [] => [0; 3],
        });
        Ok(pixels.collect())
    }
}

/// A picture that is being written.
pub struct Output(png::StreamWriter<'static, BufWriter<File>>);

impl Output {
    pub fn create(path: &Path, [rows, cols]: [usize; 2]) -> io::Result<Self> {
        let size = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, size(cols)?, size(rows)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        Ok(Self(encoder.write_header()?.into_stream_writer()?))
    }

    pub fn row(&mut self, pixels: &[Pixel]) -> io::Result<()> {
        self.0.write_all(pixels.as_flattened())
    }

    pub fn finish(self) -> io::Result<()> {
        Ok(self.0.finish()?)
    }
}
