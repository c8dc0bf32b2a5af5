package cli

// For tests of the program as a whole.
const (
	NotifyPrefix = notifyPrefix
	NotifyName   = notifyName
)
