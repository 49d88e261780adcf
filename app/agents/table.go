package agents

// table lists the programs. In variables, files and arguments {url}, {key}, {model}, {context}, {output}, {compact} and {dir} stand for
// what Server says. The counts of tokens are those of the versions named, with their default tools.
var table = []Program{
	{
		Name: "claude", Title: "Claude Code", Binary: "claude", Install: "npm install -g @anthropic-ai/claude-code", Version: "2.1.197",
		Begins: 23000,
		Env: []Var{
			{"ANTHROPIC_BASE_URL", "{url}"},
			{"ANTHROPIC_AUTH_TOKEN", "{key}"},
			{"ANTHROPIC_MODEL", "{model}"},
			{"ANTHROPIC_SMALL_FAST_MODEL", "{model}"}, // older versions' name of the next
			{"ANTHROPIC_DEFAULT_HAIKU_MODEL", "{model}"},
			{"ANTHROPIC_DEFAULT_SONNET_MODEL", "{model}"},
			{"ANTHROPIC_DEFAULT_OPUS_MODEL", "{model}"},
			{"CLAUDE_CODE_SUBAGENT_MODEL", "{model}"},
			{"CLAUDE_CODE_MAX_OUTPUT_TOKENS", "{output}"},
			{"CLAUDE_CODE_AUTO_COMPACT_WINDOW", "{context}"}, // it takes 100,000 for less
			{"CLAUDE_CODE_ATTRIBUTION_HEADER", "0"},          // a text that changes with every request
			{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"},
			{"API_TIMEOUT_MS", hour},
			{"CLAUDE_STREAM_IDLE_TIMEOUT_MS", hour},
			{"CLAUDE_CONFIG_DIR", "{dir}"},
		},
		Unset: []string{"ANTHROPIC_API_KEY", "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK",
			"CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"},
		Files: []File{{".claude.json", `{"hasCompletedOnboarding": true}
`}},
	},
	{
		Name: "codex", Title: "Codex", Binary: "codex", Install: "npm install -g @openai/codex", Version: "0.169.0",
		Begins: 8300,
		Env:    []Var{{keyVariable, "{key}"}, {"CODEX_HOME", "{dir}"}},
		Files: []File{{"config.toml", `model = "{model}"
model_provider = "tandem"
model_context_window = {context}
model_auto_compact_token_limit = {compact}
check_for_update_on_startup = false

[model_providers.tandem]
name = "tandem"
base_url = "{url}/v1"
env_key = "` + keyVariable + `"
wire_api = "responses"
stream_idle_timeout_ms = ` + hour + `
`}},
	},
	{
		// its settings are in a variable, since those of a project would go before a file's, and could name another server
		Name: "opencode", Title: "opencode", Binary: "opencode", Install: "npm install -g opencode-ai", Version: "1.18.33",
		Begins: 7100,
		Env: []Var{{keyVariable, "{key}"}, {"OPENCODE_CONFIG_CONTENT", `{"autoupdate": false, "share": "disabled", ` +
			`"model": "tandem/{model}", "small_model": "tandem/{model}", "provider": {"tandem": {"npm": "@ai-sdk/openai-compatible", ` +
			`"name": "tandem", "options": {"baseURL": "{url}/v1", "apiKey": "{env:` + keyVariable + `}", "timeout": false}, ` +
			`"models": {"{model}": {"name": "{model}", "tool_call": true, "limit": {"context": {context}, "output": {output}}}}}}}`}},
	},
	{
		Name: "qwen", Title: "Qwen Code", Binary: "qwen", Install: "npm install -g @qwen-code/qwen-code", Version: "0.15.10",
		Begins: 17400,
		Env: []Var{{"OPENAI_BASE_URL", "{url}/v1"}, {"OPENAI_API_KEY", "{key}"}, {"OPENAI_MODEL", "{model}"},
			{"QWEN_HOME", "{dir}"}},
		Files: []File{{"settings.json", `{
  "security": {"auth": {"selectedType": "openai"}},
  "model": {"name": "{model}", "generationConfig": {"contextWindowSize": {context}, "timeout": ` + hour + `}},
  "general": {"enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false}
}
`}},
	},
	{
		Name: "cn", Title: "Continue's terminal program", Binary: "cn", Install: "npm install -g @continuedev/cli", Version: "1.5.47",
		Begins: 1800,
		Env: []Var{{"CONTINUE_GLOBAL_DIR", "{dir}"}, {"CONTINUE_METRICS_ENABLED", "0"}, {"CONTINUE_TELEMETRY_ENABLED", "0"},
			{"CONTINUE_CLI_ENABLE_TELEMETRY", "0"}},
		Args: []string{"--config", "{dir}/config.yaml"},
		Files: []File{{"config.yaml", `name: tandem
version: 1.0.0
schema: v1
models:
  - name: "{model}"
    provider: openai
    model: "{model}"
    apiBase: "{url}/v1"
    apiKey: "{key}"
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {context}
      maxTokens: {output}
`}},
	},
	{
		Name: "aider", Title: "aider", Binary: "aider", Install: "python -m pip install aider-chat", Version: "0.86.2",
		Begins: 600,
		Env: []Var{{"OPENAI_API_BASE", "{url}/v1"}, {"OPENAI_API_KEY", "{key}"}, {"AIDER_MODEL", "openai/{model}"},
			{"AIDER_WEAK_MODEL", "openai/{model}"}, {"AIDER_MODEL_METADATA_FILE", "{dir}/models.json"}, {"AIDER_TIMEOUT", "3600"},
			{"AIDER_CHECK_UPDATE", "false"}, {"AIDER_ANALYTICS", "false"}, {"AIDER_SHOW_MODEL_WARNINGS", "false"}},
		Files: []File{{"models.json", `{"openai/{model}": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": {context},
  "max_output_tokens": {output}, "max_tokens": {output}, "input_cost_per_token": 0, "output_cost_per_token": 0}}
`}},
	},
}

const (
	hour        = "3600000"           // in milliseconds: how long a program waits for a prompt to be read
	keyVariable = "TANDEM_LAUNCH_KEY" // holds the key, for programs that are told its name
)
