//! A blur with binomial weights, which are nearly those of a bell: by rows and columns, and, to check
//! that, point by point.

use crate::Pixel;
use ndarray::{ArrayView2, ArrayViewMut2};
use std::collections::VecDeque;

/// So that sums of 255 times all weights, in both directions, fit into 64 bits.
pub const LARGEST: usize = 12;

/// The weights of the points at distance `-radius` to `radius`; their sum is 4 to the power `radius`.
pub fn weights(radius: usize) -> Vec<u64> {
    let mut weights = vec![1];
    for _ in 0..2 * radius {
        let mut next = vec![1; weights.len() + 1];
        for k in 1..weights.len() {
            next[k] = weights[k - 1] + weights[k];
        }
        weights = next;
    }
    weights
}

/// A sum of products with weights of both directions, as the nearest colour.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a weighted mean of numbers up to 255"
)]
fn colour(sum: u64, radius: usize) -> u8 {
    let all = 1_u64 << (4 * radius);
    ((sum + all / 2) / all) as u8
}

/// Blurs a picture that has `radius` more points on each side.
pub fn blur(from: ArrayView2<'_, Pixel>, mut to: ArrayViewMut2<'_, Pixel>, radius: usize) {
    let weights = weights(radius);
    let len = 3 * to.ncols();
    // Each row by itself first; of these sums, as many rows as one row of the result needs.
    let mut lines: VecDeque<Vec<u64>> = VecDeque::new();
    let mut sums = vec![0; len];
    let mut results = to.rows_mut().into_iter();
    for row in from.rows() {
        let row = row.to_slice().unwrap_or_default().as_flattened();
        let mut line = match lines.len() < weights.len() {
            true => Vec::new(),
            false => lines.pop_front().unwrap_or_default(),
        };
        line.clear();
        line.resize(len, 0);
        for (k, weight) in weights.iter().enumerate() {
            for (sum, &value) in line.iter_mut().zip(&row[3 * k..]) {
                *sum += weight * u64::from(value);
            }
        }
        lines.push_back(line);
        if lines.len() < weights.len() {
            continue;
        }
        sums.fill(0);
        for (line, weight) in lines.iter().zip(&weights) {
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += weight * value;
            }
        }
        let pixels = results.next().into_iter().flatten();
        for (pixel, sums) in pixels.zip(sums.as_chunks::<3>().0) {
            *pixel = sums.map(|sum| colour(sum, radius));
        }
    }
}

/// The points that have an influence on one, of a picture of this shape: those around it, row by row.
pub fn around(
    [row, col]: [usize; 2],
    [rows, cols]: [usize; 2],
    radius: usize,
) -> impl Iterator<Item = [usize; 2]> {
    let lines = 0..=2 * radius;
    lines.clone().flat_map(move |i| {
        let row = mirrored(row + i, radius, rows);
        lines
            .clone()
            .map(move |j| [row, mirrored(col + j, radius, cols)])
    })
}

/// A point of the blurred picture, of the points around it.
pub fn point(around: &[Pixel], radius: usize) -> Pixel {
    let weights = weights(radius);
    let products = weights
        .iter()
        .flat_map(|above| weights.iter().map(move |beside| above * beside));
    let mut sums = [0; 3];
    for (pixel, weight) in around.iter().zip(products) {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            *sum += weight * u64::from(value);
        }
    }
    sums.map(|sum| colour(sum, radius))
}

/// Which of `len` points is seen at `index - radius` where there is a mirror at each end.
fn mirrored(index: usize, radius: usize, len: usize) -> usize {
    let around = 2 * len;
    let place = (index + radius * (around - 1)) % around;
    place.min(around - 1 - place)
}
