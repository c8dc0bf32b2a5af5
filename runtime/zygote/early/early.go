// Package early has its program start a zygote before the program's main function and most
// initialisers run, if one of its arguments is run, create or exec. It is for programs that live
// for one container.
package early

import (
	"os"
	"slices"

	"github.com/coracle-project/coracle/runtime/zygote/program"
)

// It runs early because the packages that it needs are few (Go specification, "Program
// initialization").
func init() {
	if len(os.Args) > 1 && slices.ContainsFunc(os.Args[1:], wants) {
		program.Begin()
	}
}

// wants says whether an argument may be a command that makes a process. A value of a flag may
// look like one; then the zygote is started in vain, and discarded.
func wants(arg string) bool { return arg == "run" || arg == "create" || arg == "exec" }
