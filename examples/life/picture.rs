//! A film of the board: a GIF of two colours.

use ndarray::Array2;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A film that is being written.
pub struct Film {
    encoder: gif::Encoder<BufWriter<File>>,
    size: [u16; 2],
    scale: usize,
}

/// Of dead and living cells.
const COLOURS: [u8; 6] = [18, 22, 34, 255, 205, 90];

/// From picture to picture, in hundredths of a second.
const DELAY: u16 = 6;

impl Film {
    /// Of a board of so many rows and columns, each cell `scale` points wide and high.
    pub fn create(path: &Path, rows: usize, cols: usize, scale: usize) -> io::Result<Self> {
        let points = |cells: usize| {
            u16::try_from(cells * scale).map_err(|_| {
                io::Error::other(format!("{rows} × {cols} cells are too many for a GIF"))
            })
        };
        let size = [points(rows)?, points(cols)?];
        let file = BufWriter::new(File::create(path)?);
        let mut encoder =
            gif::Encoder::new(file, size[1], size[0], &COLOURS).map_err(io::Error::other)?;
        encoder
            .set_repeat(gif::Repeat::Infinite)
            .map_err(io::Error::other)?;
        Ok(Self {
            encoder,
            size,
            scale,
        })
    }

    /// Adds a picture of the board.
    pub fn add(&mut self, board: &Array2<u8>) -> io::Result<()> {
        let mut points = Vec::with_capacity(board.len() * self.scale * self.scale);
        for row in board.rows() {
            let line: Vec<u8> = row
                .iter()
                .flat_map(|&cell| std::iter::repeat_n(cell, self.scale))
                .collect();
            for _ in 0..self.scale {
                points.extend_from_slice(&line);
            }
        }
        let [rows, cols] = self.size;
        let mut frame = gif::Frame::from_indexed_pixels(cols, rows, points, None);
        frame.delay = DELAY;
        self.encoder.write_frame(&frame).map_err(io::Error::other)
    }

    /// Writes the end.
    pub fn finish(self) -> io::Result<()> {
        self.encoder.into_inner().map_err(io::Error::other)?.flush()
    }
}
