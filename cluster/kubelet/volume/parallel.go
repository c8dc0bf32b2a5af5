package volume

// mostMounting is how many volumes of a pod Sources mount at the same time.
const mostMounting = 32

// tryAll has volumes made, by their indexes: those of each group one after the other, next to the
// other groups, and those in own in this goroutine. So a driver that hangs holds up no other
// volume. What has failed is tried again when the pod is woken, as long as a group is not done.
func tryAll(woken <-chan struct{}, own []int, groups map[string][]int, try func(i int) error) {
	failed := func(volumes []int) (left []int) {
		for _, i := range volumes {
			if try(i) != nil {
				left = append(left, i)
			}
		}
		return left
	}
	type outcome struct {
		failed []int
		wakes  int // how often the pod had been woken before
	}
	ended, slots := make(chan outcome), make(chan struct{}, mostMounting)
	busy, wakes := 0, 0
	start := func(volumes []int) {
		busy++
		before := wakes
		go func() {
			slots <- struct{}{}
			left := failed(volumes)
			<-slots
			ended <- outcome{left, before}
		}()
	}
	for _, volumes := range groups {
		start(volumes)
	}
	own = failed(own)
	var waiting [][]int
	for busy > 0 {
		select {
		case o := <-ended:
			busy--
			switch {
			case len(o.failed) == 0:
			case o.wakes < wakes && busy > 0:
				start(o.failed)
			default:
				waiting = append(waiting, o.failed)
			}
		case <-woken:
			wakes++
			for _, volumes := range waiting {
				start(volumes)
			}
			waiting = nil
			own = failed(own)
		}
	}
}
