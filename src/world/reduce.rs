//! Reduction of the bytes that ranks contribute to a collective.

use crate::operator::{Number, Op};

/// `a[k] = a[k] op b[k]` on the bytes of two runs of numbers, however they are aligned.
pub(super) fn reduce_bytes<T: Number>(op: Op, a: &mut [u8], b: &[u8]) {
    let size = size_of::<T>();
    for (a, b) in a.chunks_exact_mut(size).zip(b.chunks_exact(size)) {
        let left: T::Bits = bytemuck::pod_read_unaligned(a);
        let right: T::Bits = bytemuck::pod_read_unaligned(b);
        // Numbers accept all bits.
        if let (Ok(left), Ok(right)) = (
            crate::element::from_bits::<T>(left),
            crate::element::from_bits::<T>(right),
        ) {
            a.copy_from_slice(bytemuck::bytes_of(&T::reduce(op, left, right)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_bytes() {
        let mut memory = [0_u8; 17];
        memory[1..].copy_from_slice(bytemuck::bytes_of(&[1_u64, 2]));
        let mut other = [0_u8; 19];
        other[3..].copy_from_slice(bytemuck::bytes_of(&[10_u64, u64::MAX]));
        reduce_bytes::<u64>(Op::Sum, &mut memory[1..], &other[3..]);
        assert_eq!(memory[1..], *bytemuck::bytes_of(&[11_u64, 1]));
    }
}
