//! A slice of a local view ends before its ghost cells change.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<f64>::builder(world, 10).halo([1]).build()?;
        let mut view = array.local()?;
        let ghost = &view[0];
        view.exchange()?;
        println!("{ghost}");
        Ok(())
    })
}
