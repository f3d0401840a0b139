//! One exchange at a time, and no other use of the view beside it.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<f64>::builder(world, 10).halo([1]).build()?;
        let mut view = array.local()?;
        let exchange = view.exchange_begin()?;
        view[0] = 1.0;
        exchange.finish()
    })
}
