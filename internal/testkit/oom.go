package testkit

import "os"

// CanLowerOOM tries what needs CAP_SYS_RESOURCE, lowering oom_score_adj, on this process, and puts
// it back.
func CanLowerOOM() bool {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("-1"), 0) != nil {
		return false
	}
	return os.WriteFile(file, before, 0) == nil
}
