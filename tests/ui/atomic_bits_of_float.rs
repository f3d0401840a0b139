//! A float's bits are no flags.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<f64>::new(world, 10)?;
        array.fetch_and(3, 1.0)?;
        Ok(())
    })
}
