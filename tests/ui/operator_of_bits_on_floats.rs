//! Floats have no bitwise operators.

use pgas::{BitOp, GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<f64>::new(world, 10)?;
        array.scatter_with(&[1, 2], &[1.0, 2.0], BitOp::Xor)
    })
}
