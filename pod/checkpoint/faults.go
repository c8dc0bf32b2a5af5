package checkpoint

import "github.com/coracle-project/coracle/internal/fault"

var faultImages = fault.New("pod.checkpoint.images") // the memory of one container is saved
