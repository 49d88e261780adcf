package prompts

// WayOf is wayOf.
var WayOf = wayOf
